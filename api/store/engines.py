"""Queries on engines."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.states import JobState
from api.store.models import Engine, Job
from api.store.pages import Page, Paging, paged


def find(session: Session, engine_id: str) -> Engine:
    """Return an engine that is registered.

    Raises
    ------
    NotFound
        There is none, or it was removed.
    """
    engine = session.get(Engine, engine_id)
    if engine is None or engine.removed_at is not None:
        raise NotFound(f"there is no engine {engine_id}.")
    return engine


def by_name(session: Session, name: str) -> Engine | None:
    return session.scalar(select(Engine).where(Engine.name == name, Engine.removed_at.is_(None)))


def page(session: Session, paging: Paging) -> Page[Engine]:
    return paged(session, select(Engine).where(Engine.removed_at.is_(None)), Engine.id, paging)


def all_there(session: Session) -> Sequence[Engine]:
    return session.scalars(select(Engine).where(Engine.removed_at.is_(None)).order_by(Engine.id)).all()


def has_open_jobs(session: Session, engine_id: str) -> bool:
    waiting = Job.state.in_([JobState.QUEUED, JobState.RUNNING])
    return session.scalar(select(Job.id).where(Job.engine_id == engine_id, waiting).limit(1)) is not None
