"""Schedules, and how their cycles ended."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.schedules import decision_rows, gate_rows, gates_in_words, number_rows, times_in_words
from api.service import page_rows
from api.states import Outcome

router = page_router()


@router.get("/schedules")
def list_schedules(
    request: Request,
    edge: Reader,
    engine: Annotated[str | None, Query(max_length=40)] = None,
    outcome: Outcome | None = None,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Show all schedules, and the decisions of all of them as a timeline."""
    chosen = engine or None
    with edge.service.database.reading() as session:
        rows = page_rows.schedule_list(session).rows
        made = page_rows.decision_list(session, cursor, engine_id=chosen, schedule_id=None, outcome=outcome)
        names = page_rows.engine_names(session)
    return pages_of(request).page(
        edge,
        "schedules.html.j2",
        section="schedules",
        title="Schedules and decisions",
        schedules=[(each, times_in_words(each)) for each in rows],
        decisions=made,
        timeline=decision_rows(made.rows),
        engine_names=names,
        engine_id=chosen,
        outcome=outcome,
        outcomes=list(Outcome),
    )


@router.get("/schedules/{schedule_id}")
def show_schedule(request: Request, edge: Reader, schedule_id: str) -> Response:
    """Show a schedule, what must hold before it acts, and its decisions."""
    with edge.service.database.reading() as session:
        rows = page_rows.one_schedule(session, schedule_id)
    return pages_of(request).page(
        edge,
        "schedule.html.j2",
        section="schedules",
        title=rows.schedule.name,
        rows=rows,
        schedule=rows.schedule,
        times=times_in_words(rows.schedule),
        gates=gates_in_words(rows.schedule.gates),
        timeline=decision_rows(rows.decisions),
    )


@router.get("/decisions/{decision_id}")
def show_decision(request: Request, edge: Reader, decision_id: str) -> Response:
    """Show how a cycle ended, with its numbers."""
    with edge.service.database.reading() as session:
        rows = page_rows.one_decision(session, decision_id)
    return pages_of(request).page(
        edge,
        "decision.html.j2",
        section="schedules",
        title="Decision",
        rows=rows,
        decision=rows.decision,
        gates=gate_rows(rows.decision.numbers),
        numbers=number_rows(rows.decision.numbers),
    )
