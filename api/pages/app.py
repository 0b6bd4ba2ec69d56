"""Puts the pages into the application."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response

from api.pages.assets import Assets
from api.pages.rendering import PageRoute, Pages
from api.pages.routes import access, compare, engines, jobs, overview, plans, rollouts, schedules, traces, traffic


def add_pages(app: FastAPI) -> None:
    """Serve the dashboard at ``/`` beside the API."""
    assets = Assets()
    app.state.pages = Pages(assets)
    pages = APIRouter(route_class=PageRoute, include_in_schema=False)

    @pages.get("/static/{version}/{name:path}")
    def static_file(request: Request, version: str, name: str) -> Response:
        return assets.answer(request, version, name)

    for module in (access, compare, overview, engines, traces, plans, rollouts, schedules, jobs, traffic):
        pages.include_router(module.router)
    app.include_router(pages)
