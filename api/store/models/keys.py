"""Who may ask, what was asked before, and who changed what."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from api.states import Level
from api.store.columns import Document, Moment, OneOf
from api.store.models.base import Base

Sequence = BigInteger().with_variant(Integer(), "sqlite")


class Key(Base):
    """A bearer key; only its SHA-256 is kept, which suffices for 256 random bits."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    level: Mapped[Level] = mapped_column(OneOf(Level))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    starts_with: Mapped[str] = mapped_column(String(12))
    """Enough of the key for a person to recognise it, too little to guess it."""

    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment)
    expires_at: Mapped[datetime | None] = mapped_column(Moment)
    last_used_at: Mapped[datetime | None] = mapped_column(Moment)
    revoked_at: Mapped[datetime | None] = mapped_column(Moment)


class AuditEvent(Base):
    """One change: who, when, what, why."""

    __tablename__ = "audit_events"
    __table_args__ = (Index("ix_audit_events_subject_id_number", "subject_id", "number"),)

    number: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(Moment)
    who: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(String(60))
    subject: Mapped[str] = mapped_column(String(24))
    subject_id: Mapped[str] = mapped_column(String(40))
    from_state: Mapped[str | None] = mapped_column(String(24))
    to_state: Mapped[str | None] = mapped_column(String(24))
    why: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(Document)
    request_id: Mapped[str | None] = mapped_column(String(80))
    job_id: Mapped[str | None] = mapped_column(String(40))


class IdempotentAnswer(Base):
    """The answer that was given to a request with an idempotency key."""

    __tablename__ = "idempotent_answers"

    who: Mapped[str] = mapped_column(String(80), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[int] = mapped_column(Integer)
    headers: Mapped[dict[str, str]] = mapped_column(Document)
    body: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(Moment, index=True)
