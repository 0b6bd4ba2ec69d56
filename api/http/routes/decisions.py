"""``/v1/decisions``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from api.http.edge import Pages, Reader
from api.http.problems import documented
from api.http.schemas.common import PageOut
from api.http.schemas.decisions import DecisionOut
from api.states import Outcome
from api.store import decisions
from api.store.decisions import DecisionFilter

router = APIRouter(prefix="/decisions", tags=["decisions"])


@router.get("", response_model=PageOut[DecisionOut])
def list_decisions(
    edge: Reader,
    pages: Pages,
    engine_id: Annotated[str | None, Query(max_length=40)] = None,
    schedule_id: Annotated[str | None, Query(max_length=40)] = None,
    outcome: Outcome | None = None,
    since: Annotated[AwareDatetime | None, Query(description="Made then or later.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Made before.")] = None,
) -> PageOut[DecisionOut]:
    """List how rebalancing cycles ended, newest first."""
    asked = DecisionFilter(engine_id=engine_id, schedule_id=schedule_id, outcome=outcome, since=since, until=until)
    with edge.service.database.reading() as session:
        page = decisions.page(session, pages, asked)
    return PageOut(items=[DecisionOut.of(row) for row in page.rows], next_cursor=page.next_cursor)


@router.get("/{decision_id}", response_model=DecisionOut, responses=documented(404))
def get_decision(decision_id: str, edge: Reader) -> DecisionOut:
    """Show how a cycle ended, with its numbers."""
    with edge.service.database.reading() as session:
        return DecisionOut.of(decisions.find(session, decision_id))
