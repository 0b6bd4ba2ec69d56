"""Queries on plans and rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.states import RolloutState
from api.store.models import Plan, PlanTrace, Rollout
from api.store.pages import Page, Paging, paged

NOTHING_MOVED = (RolloutState.REFUSED, RolloutState.CANCELLED)
"""Ends of rollouts that left the engine as it was."""


def find(session: Session, plan_id: str) -> Plan:
    """Return a plan. Raises :class:`NotFound`."""
    plan = session.get(Plan, plan_id)
    if plan is None:
        raise NotFound(f"there is no plan {plan_id}.")
    return plan


def page(session: Session, paging: Paging, *, engine_id: str | None = None) -> Page[Plan]:
    query = select(Plan)
    if engine_id is not None:
        query = query.where(Plan.engine_id == engine_id)
    return paged(session, query, Plan.id, paging)


def newest_by_engine(session: Session) -> Sequence[Plan]:
    """Return each engine's newest plan that was made."""
    newest = select(func.max(Plan.id)).where(Plan.sha256.is_not(None), Plan.engine_id.is_not(None))
    return session.scalars(select(Plan).where(Plan.id.in_(newest.group_by(Plan.engine_id)))).all()


def trace_ids(session: Session, plan_id: str) -> Sequence[str]:
    """Return the recordings that a plan is made from, in their order."""
    rows = select(PlanTrace.trace_id).where(PlanTrace.plan_id == plan_id).order_by(PlanTrace.position)
    return session.scalars(rows).all()


def uses_trace(session: Session, trace_id: str) -> bool:
    return session.scalar(select(PlanTrace.plan_id).where(PlanTrace.trace_id == trace_id).limit(1)) is not None


def find_rollout(session: Session, rollout_id: str) -> Rollout:
    """Return a rollout. Raises :class:`NotFound`."""
    rollout = session.get(Rollout, rollout_id)
    if rollout is None:
        raise NotFound(f"there is no rollout {rollout_id}.")
    return rollout


def rollouts_of_job(session: Session, job_id: str) -> Sequence[Rollout]:
    """Return the rollouts that a job carries out, oldest first."""
    return session.scalars(select(Rollout).where(Rollout.job_id == job_id).order_by(Rollout.id)).all()


def rollouts(session: Session, paging: Paging, *, engine_id: str | None = None) -> Page[Rollout]:
    query = select(Rollout)
    if engine_id is not None:
        query = query.where(Rollout.engine_id == engine_id)
    return paged(session, query, Rollout.id, paging)


def newest_rollouts(session: Session, states: Sequence[RolloutState]) -> Sequence[Rollout]:
    """Return each engine's newest rollout in one of some states."""
    newest = select(func.max(Rollout.id)).where(Rollout.state.in_(states)).group_by(Rollout.engine_id)
    return session.scalars(select(Rollout).where(Rollout.id.in_(newest))).all()


def rollout_counts(session: Session) -> Sequence[tuple[RolloutState, int]]:
    """Return how many rollouts there are in every state."""
    rows = session.execute(select(Rollout.state, func.count()).group_by(Rollout.state))
    return [(state, count) for state, count in rows]


def made_for_trace(session: Session, trace_id: str, *, limit: int) -> Sequence[Plan]:
    """Return the plans that were made from a recording, newest first."""
    of_trace = select(PlanTrace.plan_id).where(PlanTrace.trace_id == trace_id)
    query = select(Plan).where(Plan.sha256.is_not(None), Plan.id.in_(of_trace)).order_by(Plan.id.desc())
    return session.scalars(query.limit(limit)).all()


def made_for_engine(session: Session, engine_id: str, *, limit: int) -> Sequence[Plan]:
    """Return the plans that were made for an engine, newest first."""
    query = select(Plan).where(Plan.sha256.is_not(None), Plan.engine_id == engine_id).order_by(Plan.id.desc())
    return session.scalars(query.limit(limit)).all()


def rollouts_of(session: Session, plan_id: str) -> Sequence[Rollout]:
    """Return the rollouts of a plan, newest first."""
    return session.scalars(select(Rollout).where(Rollout.plan_id == plan_id).order_by(Rollout.id.desc())).all()


def taken_back_by(session: Session, rollout_id: str) -> Rollout | None:
    """Return the newest rollout that takes another one back."""
    query = select(Rollout).where(Rollout.takes_back_id == rollout_id).order_by(Rollout.id.desc())
    return session.scalar(query.limit(1))


def applied_rollout(session: Session, engine_id: str) -> Rollout | None:
    """Return an engine's newest rollout that was applied and not taken back."""
    applied = Rollout.state == RolloutState.APPLIED
    query = select(Rollout).where(Rollout.engine_id == engine_id, applied).order_by(Rollout.id.desc())
    return session.scalar(query.limit(1))


def last_change_at(session: Session, engine_id: str) -> datetime | None:
    """Return when a rollout last changed, or may have changed, an engine's layout."""
    moved = Rollout.state.in_([state for state in RolloutState if state.ended and state not in NOTHING_MOVED])
    return session.scalar(select(func.max(Rollout.ended_at)).where(Rollout.engine_id == engine_id, moved))


def newest_with_layout(session: Session, engine_id: str, layout_hash: str) -> Plan | None:
    """Return an engine's newest plan with a layout."""
    query = select(Plan).where(Plan.engine_id == engine_id, Plan.layout_hash == layout_hash, Plan.sha256.is_not(None))
    return session.scalar(query.order_by(Plan.id.desc()).limit(1))
