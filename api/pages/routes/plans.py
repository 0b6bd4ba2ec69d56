"""Plans: what they promise, and deciding about them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.plans import plan_actions, plan_view
from api.service import page_rows
from api.service import plans as plan_service
from api.service.slot_sizes import planned_sizes
from placement.dispatch import Dispatch
from placement.problem import Objective

router = page_router()


@router.get("/plans")
def list_plans(request: Request, edge: Reader, cursor: Annotated[str | None, Query(max_length=200)] = None) -> Response:
    """Show all plans."""
    with edge.service.database.reading() as session:
        page = page_rows.plan_list(session, cursor)
        names = page_rows.engine_names(session)
    return pages_of(request).page(edge, "plans.html.j2", section="plans", title="Plans", plans=page, engine_names=names)


@router.get("/plans/new")
def new_plan(
    request: Request,
    edge: Reader,
    trace: Annotated[str | None, Query(max_length=40)] = None,
    engine: Annotated[str | None, Query(max_length=40)] = None,
) -> Response:
    """Ask for the options of a plan."""
    with edge.service.database.reading() as session:
        choices = page_rows.choices(session)
    chosen = next((each for each in choices.traces if each.id == trace), None)
    engine_id = engine or (chosen.engine_id if chosen is not None else None)
    return pages_of(request).page(
        edge,
        "plan_new.html.j2",
        section="plans",
        title="Make a plan",
        choices=choices,
        trace_id=trace,
        engine_id=engine_id if any(each.id == engine_id for each in choices.engines) else None,
        objectives=list(Objective),
        dispatches=list(Dispatch),
    )


@router.get("/plans/{plan_id}")
def show_plan(request: Request, edge: Reader, plan_id: str) -> Response:
    """Show a plan beside its bound and the baselines."""
    with edge.service.database.reading() as session:
        rows = page_rows.one_plan(session, plan_id)
        of_engine = None if rows.engine is None else page_rows.one_engine(session, rows.engine.id).rollouts
        engines = page_rows.choices(session).engines
        sizes_planned = planned_sizes(session, plan_id) is not None
    view = None
    if rows.plan.sha256 is not None:
        view = plan_view(plan_service.made(edge.service, rows.plan), of_engine or rows.rollouts)
    return pages_of(request).page(
        edge,
        "plan.html.j2",
        section="plans",
        title=rows.plan.name,
        rows=rows,
        plan=rows.plan,
        view=view,
        actions=plan_actions(rows),
        engines=engines,
        sizes_planned=sizes_planned,
    )
