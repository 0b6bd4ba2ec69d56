"""Queries on jobs, their events, and the workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.states import JobKind, JobState
from api.store.columns import now
from api.store.models import Job, JobEvent, Worker
from api.store.pages import Page, Paging, paged
from api.store.schedules import clock


def find(session: Session, job_id: str) -> Job:
    """Return a job. Raises :class:`NotFound`."""
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id}.")
    return job


def lock(session: Session, job_id: str) -> Job:
    """Return a job that nobody else changes until the transaction ends. Raises :class:`NotFound`."""
    job = session.get(Job, job_id, with_for_update=True, populate_existing=True)
    if job is None:
        raise NotFound(f"there is no job {job_id}.")
    return job


def page(session: Session, paging: Paging, *, engine_id: str | None = None, state: JobState | None = None) -> Page[Job]:
    query = select(Job)
    if engine_id is not None:
        query = query.where(Job.engine_id == engine_id)
    if state is not None:
        query = query.where(Job.state == state)
    return paged(session, query, Job.id, paging)


def newest_for(session: Session, subject_id: str, kind: JobKind, *, state: JobState | None = None) -> Job | None:
    """Return the newest job of a kind for something."""
    query = select(Job).where(Job.subject_id == subject_id, Job.kind == kind)
    if state is not None:
        query = query.where(Job.state == state)
    return session.scalars(query.order_by(Job.id.desc()).limit(1)).first()


def has_ended(session: Session, job_id: str) -> bool:
    """Whether a job has ended, or never was."""
    job = session.get(Job, job_id)
    return job is None or job.state.ended


def say(session: Session, job_id: str, kind: str, **data: Any) -> None:
    """Add an event."""
    session.add(JobEvent(job_id=job_id, at=now(), kind=kind, data=data))


def report(session: Session, job_id: str, *, progress: float, step: str) -> bool:
    """Write down how far a running job is; return whether it may go on."""
    changed = session.execute(
        update(Job).where(Job.id == job_id, Job.state == JobState.RUNNING).values(progress=progress, step=step)
    )
    say(session, job_id, "progress", progress=round(progress, 4), step=step)
    return bool(getattr(changed, "rowcount", 0))


def events_after(session: Session, job_id: str, number: int, *, limit: int = 500) -> Sequence[JobEvent]:
    """Return a job's events behind a number, oldest first."""
    query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.number > number)
    return session.scalars(query.order_by(JobEvent.number).limit(limit)).all()


def events_of_kind(session: Session, job_id: str, kind: str, *, limit: int) -> Sequence[JobEvent]:
    """Return the newest of a job's events of one kind, oldest first."""
    query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.kind == kind)
    return session.scalars(query.order_by(JobEvent.number.desc()).limit(limit)).all()[::-1]


def with_events(session: Session, *, ended_before: datetime, limit: int) -> Sequence[str]:
    """Return jobs that ended long ago and whose events are still there."""
    # The oldest event comes first in the order of the primary key: as a rule nothing more is read.
    oldest = session.scalar(select(JobEvent.at).order_by(JobEvent.number).limit(1))
    if oldest is None or oldest >= ended_before:
        return ()
    query = select(JobEvent.job_id).join(Job, Job.id == JobEvent.job_id).where(Job.ended_at < ended_before)
    return session.scalars(query.distinct().limit(limit)).all()


def forget_events(session: Session, job_ids: Sequence[str]) -> None:
    """Forget what happened to jobs step by step."""
    session.execute(delete(JobEvent).where(JobEvent.job_id.in_(job_ids)))


def asked_to_stop(session: Session, job_id: str) -> bool:
    return session.scalar(select(Job.cancel_asked_at).where(Job.id == job_id)) is not None


def counts(session: Session) -> Sequence[tuple[JobKind, JobState, int]]:
    """Return how many jobs there are of every kind in every state."""
    rows = session.execute(select(Job.kind, Job.state, func.count()).group_by(Job.kind, Job.state))
    return [(kind, state, count) for kind, state, count in rows]


def seen(session: Session, worker_id: str, *, host: str, process: int, version: str, started_at: datetime) -> None:
    """Write down that a worker is alive, whether it is known or not."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    at = clock(session)
    row = insert(Worker).values(
        id=worker_id, host=host, process=process, moeplan_version=version, started_at=started_at, seen_at=at
    )
    again = {"seen_at": at, "process": process, "moeplan_version": version, "started_at": started_at}
    session.execute(row.on_conflict_do_update(index_elements=[Worker.id], set_=again))


def forget_workers(session: Session, *, not_seen_since: datetime) -> None:
    """Forget workers that were gone for so long that nothing of theirs is left."""
    session.execute(delete(Worker).where(Worker.seen_at < not_seen_since))


def workers(session: Session) -> Sequence[Worker]:
    return session.scalars(select(Worker).order_by(Worker.id)).all()
