"""Queries on keys and on answers that were given before."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.store.columns import now
from api.store.models import IdempotentAnswer, Key
from api.store.pages import Page, Paging, paged

USE_GRANULARITY = timedelta(minutes=1)
"""``last_used_at`` is written at most so often: reads must not become writes."""


def find(session: Session, key_id: str) -> Key:
    """Return a key. Raises :class:`NotFound`."""
    key = session.get(Key, key_id)
    if key is None:
        raise NotFound(f"there is no key {key_id}.")
    return key


def by_hash(session: Session, sha256: str) -> Key | None:
    return session.scalar(select(Key).where(Key.sha256 == sha256))


def any_made(session: Session) -> bool:
    """Whether there ever was a key: when the last one expires, nothing opens by itself."""
    return session.scalar(select(Key.id).limit(1)) is not None


def page(session: Session, paging: Paging) -> Page[Key]:
    return paged(session, select(Key), Key.id, paging)


def is_use_unwritten(key: Key, at: datetime) -> bool:
    return key.last_used_at is None or at - key.last_used_at >= USE_GRANULARITY


def used(session: Session, key_id: str, at: datetime) -> None:
    session.execute(update(Key).where(Key.id == key_id).values(last_used_at=at))


def claim_answer(session: Session, *, who: str, key: str, request_sha256: str) -> IdempotentAnswer | None:
    """Reserve an idempotency key for this transaction, or return the answer that was given under it.

    A second request with the same key waits here until the first is committed or rolled back.
    """
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    values = {"who": who, "key": key, "request_sha256": request_sha256, "status": 0, "headers": {}, "body": b""}
    reserved = session.execute(
        insert(IdempotentAnswer)
        .values(**values, created_at=now())
        .on_conflict_do_nothing()
        .returning(IdempotentAnswer.key)
    )
    if reserved.scalar() is not None:
        return None
    return session.get(IdempotentAnswer, (who, key))


def keep_answer(session: Session, *, who: str, key: str, status: int, headers: dict[str, str], body: bytes) -> None:
    """Keep the answer of the request that claimed the key, in its transaction."""
    answer = session.get_one(IdempotentAnswer, (who, key))
    answer.status, answer.headers, answer.body = status, headers, body


def forget_answers(session: Session, *, older_than: datetime) -> None:
    session.execute(delete(IdempotentAnswer).where(IdempotentAnswer.created_at < older_than))
