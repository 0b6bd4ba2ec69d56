"""The audit log: every change of state with who and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from api.errors import WrongState
from api.states import State, may_follow
from api.store.columns import now
from api.store.models import AuditEvent
from api.store.pages import Page, Paging, paged_by_number


@dataclass(frozen=True)
class Actor:
    """Who does something, on which request or for which job.

    Attributes
    ----------
    who : str
        ``key:<name>``, ``setting:admin``, ``loopback`` or ``job:<id>``; never a secret.
    """

    who: str
    request_id: str | None = None
    job_id: str | None = None


class HasState(Protocol):
    """A row with a state."""

    id: Any
    state: Any


def record(
    session: Session,
    actor: Actor,
    action: str,
    row: Any,
    *,
    why: str = "",
    before: State | None = None,
    after: State | None = None,
    **data: Any,
) -> None:
    """Write one line into the audit log, in the transaction of the change itself."""
    session.add(
        AuditEvent(
            at=now(),
            who=actor.who,
            action=action,
            subject=row.__tablename__.removesuffix("s"),
            subject_id=row.id,
            from_state=None if before is None else str(before),
            to_state=None if after is None else str(after),
            why=why,
            data=data,
            request_id=actor.request_id,
            job_id=actor.job_id,
        )
    )


def change_state(session: Session, row: HasState, to: State, actor: Actor, *, why: str = "", **data: Any) -> None:
    """Take a row to another state and write that down.

    Raises
    ------
    WrongState
        The step is not in the graph of :mod:`api.states`.
    """
    before: State = row.state
    if not may_follow(before, to):
        kind = str(getattr(row, "__tablename__", "thing")).removesuffix("s")
        raise WrongState(f"the {kind} is {before}: {before.sentence} It cannot become {to}.")
    row.state = to
    if hasattr(row, "version"):
        row.version += 1
    record(session, actor, f"state.{to}", row, why=why, before=before, after=to, **data)


def events(session: Session, *, subject_id: str | None, paging: Paging) -> Page[AuditEvent]:
    """Return the audit log, newest first; of one thing where its id is given."""
    query = select(AuditEvent)
    if subject_id is not None:
        query = query.where(AuditEvent.subject_id == subject_id)
    return paged_by_number(session, query, AuditEvent.number, paging)


def forget(session: Session, *, older_than: datetime, limit: int) -> int:
    """Forget the oldest entries, ``limit`` of them at most; return how many."""
    rows = select(AuditEvent.number, AuditEvent.at).order_by(AuditEvent.number).limit(limit)
    numbers = [number for number, at in session.execute(rows) if at < older_than]
    session.execute(delete(AuditEvent).where(AuditEvent.number.in_(numbers)))
    return len(numbers)
