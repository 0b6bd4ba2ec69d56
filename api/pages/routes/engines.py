"""Engines."""

from __future__ import annotations

from fastapi import Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.overview import engine_card
from api.service import page_rows

router = page_router()


@router.get("/engines/new")
def new_engine(request: Request, edge: Reader) -> Response:
    """Ask for an engine's name and address."""
    return pages_of(request).page(edge, "engine_new.html.j2", section="overview", title="Register an engine")


@router.get("/engines/{engine_id}")
def show_engine(request: Request, edge: Reader, engine_id: str) -> Response:
    """Show what an engine is, what was recorded from it, and what was brought into it."""
    with edge.service.database.reading() as session:
        rows = page_rows.one_engine(session, engine_id)
    return pages_of(request).page(
        edge,
        "engine.html.j2",
        section="overview",
        title=rows.engine.name,
        rows=rows,
        engine=rows.engine,
        card=engine_card(edge.service, rows),
    )
