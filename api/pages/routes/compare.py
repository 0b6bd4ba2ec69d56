"""Two windows or two layouts side by side."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.compare import LayoutsView, WindowsView, layouts_view, windows_view
from api.pages.views.heat import heat_problem
from api.service import page_rows
from api.service.frames import PhaseAsked
from placement.errors import CodedError

router = page_router()


@router.get("/compare")
def compare(
    request: Request,
    edge: Reader,
    kind: Literal["windows", "layouts"] = "windows",
    trace: Annotated[str | None, Query(max_length=40)] = None,
    a: Annotated[str | None, Query(max_length=40)] = None,
    b: Annotated[str | None, Query(max_length=40)] = None,
    phase: PhaseAsked | None = None,
) -> Response:
    """Ask what to compare, and show what differs most."""
    with edge.service.database.reading() as session:
        choices = page_rows.choices(session)
    view: WindowsView | LayoutsView | None = None
    problem = None
    try:
        if kind == "windows":
            chosen = next((each for each in choices.traces if each.id == trace), next(iter(choices.traces), None))
            view = None if chosen is None else windows_view(edge.service, request.app.state.frames, chosen, a, b, phase)
        else:
            view = layouts_view(edge.service, choices.plans, a, b)
    except CodedError as error:
        problem = heat_problem(error)
    return pages_of(request).page(
        edge,
        "compare.html.j2",
        section="compare",
        title="Compare",
        kind=kind,
        choices=choices,
        view=view,
        problem=problem,
        phase=phase,
    )
