"""Recordings."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from api.states import TraceState
from api.store.columns import Document, Moment, OneOf
from api.store.models.base import Base


class Trace(Base):
    """A recording, uploaded or captured; its body is a stored file."""

    __tablename__ = "traces"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    state: Mapped[TraceState] = mapped_column(OneOf(TraceState), index=True)
    origin: Mapped[str] = mapped_column(String(24))
    engine_id: Mapped[str | None] = mapped_column(ForeignKey("engines.id"), index=True)
    request: Mapped[dict[str, Any]] = mapped_column(Document)
    """How to read or record it."""

    sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    facts: Mapped[dict[str, Any] | None] = mapped_column(Document)
    warnings: Mapped[list[dict[str, str]]] = mapped_column(Document)
    error: Mapped[dict[str, Any] | None] = mapped_column(Document)
    job_id: Mapped[str | None] = mapped_column(String(40))
    kept: Mapped[bool] = mapped_column(Boolean)
    expires_at: Mapped[datetime | None] = mapped_column(Moment, index=True)
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment)
    version: Mapped[int] = mapped_column(Integer)


class TraceUpload(Base):
    """A file as it was uploaded; gone once the trace is made of it."""

    __tablename__ = "trace_uploads"

    trace_id: Mapped[str] = mapped_column(ForeignKey("traces.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
