"""When engines are rebalanced, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Float, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from api.rebalancing.gates import Mode
from api.states import Outcome
from api.store.columns import Document, Moment, OneOf
from api.store.models.base import Base


class Schedule(Base):
    """When an engine is rebalanced, how, and within which limits."""

    __tablename__ = "schedules"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    engine_id: Mapped[str] = mapped_column(ForeignKey("engines.id"), index=True)
    cron: Mapped[str | None] = mapped_column(String(200))
    interval_s: Mapped[float | None] = mapped_column(Float)
    time_zone: Mapped[str] = mapped_column(String(64))
    starts_at: Mapped[datetime] = mapped_column(Moment)
    """What an interval is counted from: when its times were last changed."""

    mode: Mapped[Mode] = mapped_column(OneOf(Mode))
    capture: Mapped[dict[str, Any]] = mapped_column(Document)
    planning: Mapped[dict[str, Any]] = mapped_column(Document)
    gates: Mapped[dict[str, Any]] = mapped_column(Document)
    rollout: Mapped[dict[str, Any]] = mapped_column(Document)
    paused: Mapped[bool] = mapped_column(Boolean)
    next_due_at: Mapped[datetime | None] = mapped_column(Moment, index=True)
    """None while it is paused, and once it is removed."""

    last_tick_at: Mapped[datetime | None] = mapped_column(Moment)
    last_success_at: Mapped[datetime | None] = mapped_column(Moment)
    cycles: Mapped[int] = mapped_column(Integer)
    """Number of its last cycle, counted from 1."""

    missed_ticks: Mapped[int] = mapped_column(Integer)
    """Ticks that passed while no worker was there; each time the last of them was made up for."""

    created_by: Mapped[str] = mapped_column(Text)
    version: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(Moment)
    removed_at: Mapped[datetime | None] = mapped_column(Moment)


class Cycle(Base):
    """One tick of a schedule and what is done about it; the number makes sure that it is done once."""

    __tablename__ = "cycles"
    __table_args__ = (UniqueConstraint("schedule_id", "number"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id"))
    number: Mapped[int] = mapped_column(Integer)
    engine_id: Mapped[str] = mapped_column(ForeignKey("engines.id"), index=True)
    due_at: Mapped[datetime] = mapped_column(Moment)
    asked: Mapped[bool] = mapped_column(Boolean)
    """Whether somebody asked for it, between the ticks."""

    missed_ticks: Mapped[int] = mapped_column(Integer)
    """Earlier ticks that it stands for."""

    settings: Mapped[dict[str, Any]] = mapped_column(Document)
    """Mode, capture, planning, gates and rollout as they were then: later changes do not concern it."""

    numbers: Mapped[dict[str, Any]] = mapped_column(Document)
    """What it has found so far; they become the decision's, however it ends."""

    trace_id: Mapped[str | None] = mapped_column(ForeignKey("traces.id"))
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plans.id"), index=True)
    rollout_id: Mapped[str | None] = mapped_column(ForeignKey("rollouts.id"))
    job_id: Mapped[str | None] = mapped_column(String(40))
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment)
    ended_at: Mapped[datetime | None] = mapped_column(Moment)


class Decision(Base):
    """How a rebalancing cycle ended, with a sentence and its numbers, also when nothing was done."""

    __tablename__ = "decisions"
    __table_args__ = (
        Index("ix_decisions_engine_id_id", "engine_id", "id"),
        Index("ix_decisions_schedule_id_id", "schedule_id", "id"),
        Index("ix_decisions_outcome_id", "outcome", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    cycle_id: Mapped[str] = mapped_column(ForeignKey("cycles.id"), unique=True)
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id"))
    engine_id: Mapped[str] = mapped_column(ForeignKey("engines.id"))
    outcome: Mapped[Outcome] = mapped_column(OneOf(Outcome))
    code: Mapped[str] = mapped_column(String(60))
    sentence: Mapped[str] = mapped_column(Text)
    numbers: Mapped[dict[str, Any]] = mapped_column(Document)
    trace_id: Mapped[str | None] = mapped_column(ForeignKey("traces.id"))
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plans.id"))
    rollout_id: Mapped[str | None] = mapped_column(ForeignKey("rollouts.id"))
    job_id: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime] = mapped_column(Moment)


class ForgottenDecisions(Base):
    """How many decisions of an outcome there were that are forgotten, so that a counter of all never falls."""

    __tablename__ = "forgotten_decisions"

    outcome: Mapped[Outcome] = mapped_column(OneOf(Outcome), primary_key=True)
    count: Mapped[int] = mapped_column(BigInteger)
