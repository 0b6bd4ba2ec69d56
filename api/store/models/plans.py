"""Plans, and their way into engines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from api.states import PlanState, RolloutState
from api.store.columns import Document, Moment, OneOf
from api.store.models.base import Base


class Plan(Base):
    """A plan; the file PLAN.json is stored by its content, the figures that lists show stand here."""

    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    state: Mapped[PlanState] = mapped_column(OneOf(PlanState), index=True)
    engine_id: Mapped[str | None] = mapped_column(ForeignKey("engines.id"), index=True)
    request: Mapped[dict[str, Any]] = mapped_column(Document)
    sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    layout_hash: Mapped[str | None] = mapped_column(String(64), index=True)
    current_hash: Mapped[str | None] = mapped_column(String(64))
    """The layout that the engine ran when it was planned."""

    current_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    """That layout as a stored file."""

    status: Mapped[str | None] = mapped_column(String(24))
    local_gpu: Mapped[float | None] = mapped_column(Float)
    imbalance: Mapped[float | None] = mapped_column(Float)
    gap: Mapped[float | None] = mapped_column(Float)
    moved_slots: Mapped[int | None] = mapped_column(Integer)
    solve_seconds: Mapped[float | None] = mapped_column(Float)
    error: Mapped[dict[str, Any] | None] = mapped_column(Document)
    job_id: Mapped[str | None] = mapped_column(String(40))
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment)
    version: Mapped[int] = mapped_column(Integer)


class PlanTrace(Base):
    """A recording that a plan is made from."""

    __tablename__ = "plan_traces"

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id"), primary_key=True)
    trace_id: Mapped[str] = mapped_column(ForeignKey("traces.id"), primary_key=True, index=True)
    position: Mapped[int] = mapped_column(Integer)


class Rollout(Base):
    """A layout on its way into an engine."""

    __tablename__ = "rollouts"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    engine_id: Mapped[str] = mapped_column(ForeignKey("engines.id"), index=True)
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plans.id"), index=True)
    takes_back_id: Mapped[str | None] = mapped_column(ForeignKey("rollouts.id"))
    """The rollout that this one takes back."""

    state: Mapped[RolloutState] = mapped_column(OneOf(RolloutState), index=True)
    from_hash: Mapped[str | None] = mapped_column(String(64))
    from_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    """The engine as it was before, as a stored file: written before anything moves."""

    to_hash: Mapped[str] = mapped_column(String(64))
    pace: Mapped[dict[str, Any]] = mapped_column(Document)
    result: Mapped[dict[str, Any] | None] = mapped_column(Document)
    taken_back: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """What the engine said when the layout before was put back by itself."""

    runs_hash: Mapped[str | None] = mapped_column(String(64))
    """The layout that the engine ran when it was last read for this rollout."""

    measure_seconds: Mapped[float] = mapped_column(Float, server_default="0")
    """How long demand is recorded after the push; 0 measures nothing."""

    roll_back_margin: Mapped[float] = mapped_column(Float, server_default="0.05")
    """How much worse than the layout before, as a share of its figure, is taken back by itself."""

    predicted: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """The plan's own figures."""

    measured: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """The layout's figures on the demand that was recorded after the push."""

    measured_before: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """The figures of the layout before on that same demand."""

    verdict: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """What the comparison came to, or why there was none, with a sentence."""

    warnings: Mapped[list[dict[str, str]]] = mapped_column(Document)
    error: Mapped[dict[str, Any] | None] = mapped_column(Document)
    reason: Mapped[str] = mapped_column(Text)
    job_id: Mapped[str | None] = mapped_column(String(40), index=True)
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment)
    ended_at: Mapped[datetime | None] = mapped_column(Moment)
    version: Mapped[int] = mapped_column(Integer)
