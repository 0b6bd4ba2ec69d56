"""Queries on decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.states import Outcome
from api.store.identifiers import first_id_of
from api.store.models import Decision, ForgottenDecisions
from api.store.pages import Page, Paging, paged

KIND = "dec"


@dataclass(frozen=True, kw_only=True)
class DecisionFilter:
    """Which decisions are asked for; None asks for all. ``since`` is inside, ``until`` is not, to the millisecond."""

    engine_id: str | None = None
    schedule_id: str | None = None
    outcome: Outcome | None = None
    since: datetime | None = None
    until: datetime | None = None


def find(session: Session, decision_id: str) -> Decision:
    """Return a decision. Raises :class:`NotFound`."""
    decision = session.get(Decision, decision_id)
    if decision is None:
        raise NotFound(f"there is no decision {decision_id}.")
    return decision


def of_cycle(session: Session, cycle_id: str) -> Decision | None:
    return session.scalar(select(Decision).where(Decision.cycle_id == cycle_id))


def page(session: Session, paging: Paging, asked: DecisionFilter = DecisionFilter()) -> Page[Decision]:
    """Return a page of decisions, newest first."""
    query = select(Decision)
    for column, value in (
        (Decision.engine_id, asked.engine_id),
        (Decision.schedule_id, asked.schedule_id),
        (Decision.outcome, asked.outcome),
    ):
        if value is not None:
            query = query.where(column == value)
    # Identifiers begin with the time, so the index on them serves times too.
    if asked.since is not None:
        query = query.where(Decision.id >= first_id_of(KIND, asked.since))
    if asked.until is not None:
        query = query.where(Decision.id < first_id_of(KIND, asked.until))
    return paged(session, query, Decision.id, paging)


def counts(session: Session) -> Sequence[tuple[Outcome, int]]:
    """Return how many decisions of every outcome were ever made, those that are forgotten included."""
    made: Counter[Outcome] = Counter()
    for outcome, count in session.execute(select(Decision.outcome, func.count()).group_by(Decision.outcome)):
        made[outcome] += count
    for forgotten in session.scalars(select(ForgottenDecisions)):
        made[forgotten.outcome] += forgotten.count
    return list(made.items())


def taken_back_in_row(session: Session, engine_id: str, *, most: int = 10) -> int:
    """Return how many of an engine's last pushes by cycles were taken back, since one was kept."""
    pushed = Decision.outcome.in_([Outcome.APPLIED, Outcome.ROLLED_BACK])
    query = select(Decision.outcome).where(Decision.engine_id == engine_id, pushed).order_by(Decision.id.desc())
    outcomes = session.scalars(query.limit(most)).all()
    return next((number for number, each in enumerate(outcomes) if each is Outcome.APPLIED), len(outcomes))
