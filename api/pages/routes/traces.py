"""Recordings and their heat."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.heat import heat_problem, heat_view, usable_plan
from api.service import page_rows
from api.service.frames import PhaseAsked
from placement.errors import CodedError

router = page_router()


@router.get("/traces")
def list_traces(
    request: Request, edge: Reader, cursor: Annotated[str | None, Query(max_length=200)] = None
) -> Response:
    """Show all recordings, and take new ones in."""
    with edge.service.database.reading() as session:
        page = page_rows.trace_list(session, cursor)
        names = page_rows.engine_names(session)
    return pages_of(request).page(
        edge, "traces.html.j2", section="traces", title="Recordings", recordings=page, engine_names=names
    )


@router.get("/traces/{trace_id}")
def show_trace(
    request: Request,
    edge: Reader,
    trace_id: str,
    plan: Annotated[str | None, Query(max_length=40)] = None,
    phase: PhaseAsked | None = None,
) -> Response:
    """Show a recording's heat, and its load under a plan's layouts."""
    with edge.service.database.reading() as session:
        rows = page_rows.one_trace(session, trace_id)
    chosen = usable_plan(rows, plan)
    view, problem = None, None
    if rows.trace.sha256 is not None:
        try:
            view = heat_view(edge.service, request.app.state.frames, rows, chosen, phase)
        except CodedError as error:
            problem = heat_problem(error)
    return pages_of(request).page(
        edge,
        "trace.html.j2",
        section="traces",
        title=rows.trace.name,
        rows=rows,
        trace=rows.trace,
        plan=chosen,
        phase=phase,
        view=view,
        problem=problem,
    )
