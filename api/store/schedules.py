"""Queries on schedules and their cycles."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.states import JobKind, JobState
from api.store.columns import now
from api.store.models import Cycle, Engine, Job, Schedule
from api.store.pages import Page, Paging, paged


def find(session: Session, schedule_id: str) -> Schedule:
    """Return a schedule. Raises :class:`NotFound`: there is none, or it was removed."""
    schedule = session.get(Schedule, schedule_id)
    if schedule is None or schedule.removed_at is not None:
        raise NotFound(f"there is no schedule {schedule_id}.")
    return schedule


def lock(session: Session, schedule_id: str) -> Schedule:
    """Return a schedule that nobody else changes until the transaction ends. Raises :class:`NotFound`."""
    schedule = session.get(Schedule, schedule_id, with_for_update=True, populate_existing=True)
    if schedule is None or schedule.removed_at is not None:
        raise NotFound(f"there is no schedule {schedule_id}.")
    return schedule


def page(session: Session, paging: Paging, *, engine_id: str | None = None) -> Page[Schedule]:
    query = select(Schedule).where(Schedule.removed_at.is_(None))
    if engine_id is not None:
        query = query.where(Schedule.engine_id == engine_id)
    return paged(session, query, Schedule.id, paging)


def all_there(session: Session) -> Sequence[Schedule]:
    return session.scalars(select(Schedule).where(Schedule.removed_at.is_(None)).order_by(Schedule.id)).all()


def lock_of_engine(session: Session, engine_id: str) -> Sequence[Schedule]:
    """Return an engine's schedules, which nobody else changes until the transaction ends."""
    there = Schedule.removed_at.is_(None)
    query = select(Schedule).where(Schedule.engine_id == engine_id, there).order_by(Schedule.id)
    return session.scalars(query.with_for_update()).all()


def clock(session: Session) -> datetime:
    """Return the time by the database's clock, which all replicas share; SQLite's is that of this machine."""
    if session.get_bind().dialect.name == "postgresql":
        found: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        return found
    return now()


def with_a_tick_to_look_at(session: Session, at: datetime) -> Sequence[str]:
    """Return schedules that are due, and those whose last tick lies ahead because the clock was put back."""
    waiting = Schedule.next_due_at.is_not(None)
    due = (Schedule.next_due_at <= at) | (Schedule.last_tick_at > at) | (Schedule.starts_at > at)
    return session.scalars(select(Schedule.id).where(waiting, due).order_by(Schedule.next_due_at)).all()


def take(session: Session, schedule_id: str) -> Schedule | None:
    """Lock a schedule for its tick; None where another replica has it at this moment."""
    query = select(Schedule).where(Schedule.id == schedule_id).with_for_update(skip_locked=True)
    return session.scalar(query.execution_options(populate_existing=True))


def open_job(session: Session, engine_id: str) -> Job | None:
    """Return the job of an engine's cycle that has not ended."""
    waiting = Job.state.in_([JobState.QUEUED, JobState.RUNNING])
    query = select(Job).where(Job.engine_id == engine_id, Job.kind == JobKind.REBALANCE, waiting)
    return session.scalar(query.limit(1))


def find_cycle(session: Session, cycle_id: str) -> Cycle:
    """Return a cycle. Raises :class:`NotFound`."""
    cycle = session.get(Cycle, cycle_id)
    if cycle is None:
        raise NotFound(f"there is no cycle {cycle_id}.")
    return cycle


def plans_before(session: Session, cycle: Cycle) -> Sequence[str]:
    """Return the plans that earlier cycles of the same schedule made."""
    earlier = (Cycle.schedule_id == cycle.schedule_id, Cycle.number < cycle.number, Cycle.plan_id.is_not(None))
    found = session.scalars(select(Cycle.plan_id).where(*earlier).order_by(Cycle.number.desc()).limit(20)).all()
    return [plan_id for plan_id in found if plan_id is not None]


def lock_engine(session: Session, engine_id: str) -> Engine | None:
    """Lock an engine, so that two schedules of it do not begin a cycle at the same moment."""
    return session.get(Engine, engine_id, with_for_update=True, populate_existing=True)


def succeeded(session: Session, schedule_id: str, at: datetime) -> None:
    """Write down when a cycle last came to a decision; that is no change of the schedule, so its version stays."""
    session.execute(update(Schedule).where(Schedule.id == schedule_id).values(last_success_at=at))


def name_of(session: Session, schedule_id: str) -> str:
    """Return the name of a schedule, also of one that was removed."""
    return session.scalar(select(Schedule.name).where(Schedule.id == schedule_id)) or schedule_id
