"""Long work, what became of it, and who does it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from api.states import JobKind, JobState
from api.store.columns import Document, Moment, OneOf
from api.store.models.base import Base

Sequence = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite counts up by itself only where the type is exactly INTEGER."""


class Job(Base):
    """A job; its id is also that of its durable workflow."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_engine_id_state", "engine_id", "state"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    kind: Mapped[JobKind] = mapped_column(OneOf(JobKind))
    state: Mapped[JobState] = mapped_column(OneOf(JobState), index=True)
    engine_id: Mapped[str | None] = mapped_column(ForeignKey("engines.id"))
    subject_id: Mapped[str] = mapped_column(String(40), index=True)
    """The trace, plan, rollout or cycle that it is for."""

    progress: Mapped[float] = mapped_column(Float)
    step: Mapped[str] = mapped_column(Text)
    result: Mapped[dict[str, Any] | None] = mapped_column(Document)
    error: Mapped[dict[str, Any] | None] = mapped_column(Document)
    attempts: Mapped[int] = mapped_column(Integer)
    worker: Mapped[str | None] = mapped_column(String(80))
    request_id: Mapped[str | None] = mapped_column(String(80))
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment)
    started_at: Mapped[datetime | None] = mapped_column(Moment)
    ended_at: Mapped[datetime | None] = mapped_column(Moment)
    cancel_asked_at: Mapped[datetime | None] = mapped_column(Moment)


class JobEvent(Base):
    """Something that happened to a job, in the order it happened."""

    __tablename__ = "job_events"
    __table_args__ = (Index("ix_job_events_job_id_number", "job_id", "number"),)

    number: Mapped[int] = mapped_column(Sequence, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    at: Mapped[datetime] = mapped_column(Moment)
    kind: Mapped[str] = mapped_column(String(24))
    data: Mapped[dict[str, Any]] = mapped_column(Document)


class Worker(Base):
    """A process that carries out jobs, and when it was last seen."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    host: Mapped[str] = mapped_column(Text)
    process: Mapped[int] = mapped_column(Integer)
    moeplan_version: Mapped[str] = mapped_column(String(40))
    started_at: Mapped[datetime] = mapped_column(Moment)
    seen_at: Mapped[datetime] = mapped_column(Moment, index=True)
