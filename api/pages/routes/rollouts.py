"""Rollouts: plans on their way into engines."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.rollouts import rollout_view
from api.service import page_rows

router = page_router()


@router.get("/rollouts")
def list_rollouts(
    request: Request, edge: Reader, cursor: Annotated[str | None, Query(max_length=200)] = None
) -> Response:
    """Show all rollouts."""
    with edge.service.database.reading() as session:
        page = page_rows.rollout_list(session, cursor)
        names = page_rows.engine_names(session)
    return pages_of(request).page(
        edge, "rollouts.html.j2", section="rollouts", title="Rollouts", rollouts=page, engine_names=names
    )


@router.get("/rollouts/{rollout_id}")
def show_rollout(request: Request, edge: Reader, rollout_id: str) -> Response:
    """Show a rollout's way, live, and let it be taken back."""
    with edge.service.database.reading() as session:
        rows = page_rows.one_rollout(session, rollout_id)
    view = rollout_view(edge.service, rows)
    return pages_of(request).page(
        edge,
        "rollout.html.j2",
        section="rollouts",
        title=view.title,
        rows=rows,
        rollout=rows.rollout,
        view=view,
    )
