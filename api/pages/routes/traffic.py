"""Who sends how much to whom."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.heat import before_in_words, heat_problem, usable_plan
from api.pages.views.traffic import traffic_view
from api.service import page_rows
from api.service import plans as plan_service
from api.service.frames import LayoutAsked, PhaseAsked
from api.service.traffic import traffic
from placement.errors import CodedError

router = page_router()


@router.get("/traces/{trace_id}/traffic")
def show_traffic(
    request: Request,
    edge: Reader,
    trace_id: str,
    plan: Annotated[str | None, Query(max_length=40)] = None,
    layout: LayoutAsked = "plan",
    phase: PhaseAsked | None = None,
    token_bytes: Annotated[float | None, Query(gt=0, le=1e9)] = None,
) -> Response:
    """Show a recording's routed tokens from home GPU to serving GPU under a plan's layouts."""
    with edge.service.database.reading() as session:
        rows = page_rows.one_trace(session, trace_id)
    chosen = usable_plan(rows, plan)
    view, problem = None, None
    if chosen is not None:
        try:
            found = {
                name: traffic(edge.service, rows.trace, chosen, layout=name, phase=phase) for name in ("before", "plan")
            }
            made = plan_service.made(edge.service, chosen)
            view = traffic_view(found, made, layout=layout, token_bytes=token_bytes)
        except CodedError as error:
            problem = heat_problem(error)
    return pages_of(request).page(
        edge,
        "traffic.html.j2",
        section="traces",
        title=f"Traffic of {rows.trace.name}",
        rows=rows,
        trace=rows.trace,
        plan=chosen,
        layout=layout,
        phase=phase,
        token_bytes=token_bytes,
        before_name="" if chosen is None else before_in_words(chosen),
        view=view,
        problem=problem,
    )
