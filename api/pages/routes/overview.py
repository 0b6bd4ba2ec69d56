"""The first page."""

from __future__ import annotations

from fastapi import Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.overview import engine_card
from api.service import page_rows

router = page_router()


@router.get("/")
def overview(request: Request, edge: Reader) -> Response:
    """Show every engine, or how to begin."""
    with edge.service.database.reading() as session:
        rows = page_rows.all_engines(session)
        recordings = page_rows.trace_list(session, None).rows
        plans = page_rows.plan_list(session, None).rows
        workers = page_rows.workers_alive(session)
    cards = [engine_card(edge.service, each) for each in rows]
    return pages_of(request).page(
        edge,
        "overview.html.j2",
        section="overview",
        title="Overview",
        cards=cards,
        waiting=sum(len(card.needs) for card in cards),
        recordings=recordings[:5],
        plans=plans[:5],
        workers=workers,
    )
