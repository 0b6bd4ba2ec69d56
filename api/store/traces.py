"""Queries on recordings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.states import TraceState
from api.store.models import Trace, TraceUpload
from api.store.pages import Page, Paging, paged


def find(session: Session, trace_id: str) -> Trace:
    """Return a recording. Raises :class:`NotFound`."""
    trace = session.get(Trace, trace_id)
    if trace is None:
        raise NotFound(f"there is no trace {trace_id}.")
    return trace


def page(session: Session, paging: Paging, *, engine_id: str | None = None) -> Page[Trace]:
    query = select(Trace)
    if engine_id is not None:
        query = query.where(Trace.engine_id == engine_id)
    return paged(session, query, Trace.id, paging)


def uploads(session: Session, trace_id: str) -> Sequence[TraceUpload]:
    return session.scalars(select(TraceUpload).where(TraceUpload.trace_id == trace_id).order_by(TraceUpload.name)).all()


def forget_uploads(session: Session, trace_id: str) -> None:
    session.execute(delete(TraceUpload).where(TraceUpload.trace_id == trace_id))


def overdue(session: Session, at: datetime) -> Sequence[Trace]:
    """Return recordings whose time of retention is over."""
    ready = Trace.state == TraceState.READY
    return session.scalars(select(Trace).where(ready, Trace.kept.is_(False), Trace.expires_at < at)).all()


def newest_by_engine(session: Session) -> Sequence[Trace]:
    """Return each engine's newest ready recording."""
    newest = select(func.max(Trace.id)).where(Trace.state == TraceState.READY, Trace.engine_id.is_not(None))
    return session.scalars(select(Trace).where(Trace.id.in_(newest.group_by(Trace.engine_id)))).all()
