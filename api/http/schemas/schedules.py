"""Schedules over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.http.schemas.common import Name, Strict
from api.plan_request import MAX_MOVED_BYTES, MAX_SEED
from api.rebalancing.gates import DAY_S, Gates, Mode
from api.rebalancing.hours import Hours
from api.rebalancing.timing import LONGEST_INTERVAL_S, SHORTEST_INTERVAL_S
from api.service.rollouts import (
    MAX_MEASURE_SECONDS,
    MAX_ROLL_BACK_MARGIN,
    USUAL_MEASURE_SECONDS,
    USUAL_ROLL_BACK_MARGIN,
)
from api.service.traces import MAX_CAPTURE_S, MAX_CAPTURE_STEPS
from api.store.models import Schedule
from placement.problem import LocalScope
from profiler.engine.contract_push import MAX_PAUSE_S

Cron = Annotated[str, StringConstraints(strip_whitespace=True, min_length=9, max_length=200, pattern=r"^[^\x00]*$")]
TimeZone = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")]
Clock = Annotated[str, StringConstraints(pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$")]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
Interval = Annotated[float, Field(ge=SHORTEST_INTERVAL_S, le=LONGEST_INTERVAL_S)]


class CaptureOptions(Strict):
    """How a cycle records. The last windows are held out to judge on, so there are at least two."""

    steps: int | None = Field(default=None, ge=2, le=MAX_CAPTURE_STEPS, description="Engine steps; or seconds.")
    seconds: float | None = Field(default=None, gt=0, le=MAX_CAPTURE_S)
    window_steps: int | None = Field(default=None, ge=1, le=MAX_CAPTURE_STEPS)
    window_seconds: float | None = Field(default=None, gt=0, le=MAX_CAPTURE_S)


class PlanningOptions(Strict):
    """How a cycle plans: as `moeplan plan`, on the engine's own GPUs and slots.

    A recording from an engine holds counts and no single tokens, so the objectives are those that counts suffice for.
    """

    objective: Literal["locality", "balance"] = "locality"
    local_scope: LocalScope | None = None
    local_target: float | None = Field(default=None, gt=0, le=1)
    max_imbalance: float | None = Field(default=None, ge=1, le=4096)
    holdout: float = Field(default=0.25, gt=0, lt=1, description="Share of the windows, the last ones, to judge on.")
    phase: Literal["prefill", "decode"] | None = None
    capacity_factor: float | None = Field(default=None, gt=0, le=4096)
    time_limit_s: float | None = Field(default=None, gt=0, le=86400)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)


class HoursIn(Strict):
    """From one time of day to another; until the next day where it ends before it begins."""

    days: list[Day] = Field(min_length=1, max_length=7, description="Days on which it begins.")
    start: Clock = Field(examples=["22:00"])
    end: Clock = Field(examples=["06:00"])


class GatesIn(Strict):
    """What must hold before a plan is proposed or pushed."""

    least_tokens: int = Field(default=100_000, ge=0, le=2**62, description="Routed tokens of the recording.")
    least_drift: float = Field(
        default=0.0, ge=0, le=1,
        description="Jensen-Shannon distance of demand from what the running layout was planned for, the mean over MoE "
        "layers; below it nothing is planned.",
    )  # fmt: skip
    longest_recording_age_s: float = Field(default=3600.0, ge=1, le=366 * DAY_S)
    least_gain: float = Field(
        default=0.01, ge=0, le=1e6,
        description="On the held-out windows, in the objective's figure: share of local tokens, or worst imbalance.",
    )  # fmt: skip
    least_relative_gain: float = Field(default=0.0, ge=0, le=1e6)
    most_imbalance_rise: float = Field(
        default=0.1, ge=0, le=1e6, description="Above the running layout's imbalance, as a share of it."
    )
    most_moved_slots: int | None = Field(default=None, ge=0, le=MAX_MOVED_BYTES)
    most_moved_bytes: int | None = Field(default=None, ge=0, le=MAX_MOVED_BYTES)
    cool_down_s: float = Field(
        default=600.0,
        ge=0,
        le=366 * DAY_S,
        description="Since the layout was last changed; doubled for every plan in a row that was taken back.",
    )
    maintenance_hours: list[HoursIn] = Field(
        default_factory=list, max_length=32, description="When the engine may be changed; always by default."
    )
    time_zone: TimeZone = Field(default="UTC", description="Of the maintenance hours, by its IANA name.")

    def value(self) -> Gates:
        """Return the gates. Raises :class:`BadSchedule`."""
        given = self.model_dump(mode="json", exclude={"maintenance_hours"})
        hours = tuple(Hours(tuple(each.days), each.start, each.end) for each in self.maintenance_hours)
        return Gates(**given, maintenance_hours=hours)


class RolloutOptions(Strict):
    """How a plan is brought in and judged, in the mode apply."""

    layers_per_chunk: int | None = Field(default=None, ge=1, le=4096)
    pause_s: float | None = Field(default=None, ge=0, le=MAX_PAUSE_S)
    measure_seconds: float = Field(default=USUAL_MEASURE_SECONDS, ge=0, le=MAX_MEASURE_SECONDS)
    roll_back_margin: float = Field(default=USUAL_ROLL_BACK_MARGIN, ge=0, le=MAX_ROLL_BACK_MARGIN)


class ScheduleIn(Strict):
    """A schedule to make. Its first tick is the next one, never now."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "engine_id": "eng_01k3x9v4e7q8w2m5n6p7r8s9t0", "cron": "30 * * * *", "time_zone": "Europe/Berlin",
                    "mode": "propose", "gates": {"least_gain": 0.02},
                },
                {
                    "engine_id": "eng_01k3x9v4e7q8w2m5n6p7r8s9t0", "interval_s": 3600, "mode": "apply",
                    "capture": {"seconds": 120, "window_seconds": 15},
                    "planning": {"objective": "balance"},
                    "gates": {
                        "least_relative_gain": 0.05, "most_moved_slots": 500, "time_zone": "Europe/Berlin",
                        "maintenance_hours": [{"days": ["mon", "tue"], "start": "22:00", "end": "06:00"}],
                    },
                },
            ]
        }
    )  # fmt: skip

    engine_id: str = Field(max_length=40)
    name: Name | None = None
    cron: Cron | None = Field(
        default=None, description="Minute, hour, day of month, month, day of week; or interval_s."
    )
    interval_s: Interval | None = None
    time_zone: TimeZone = Field(default="UTC", description="That cron is read in, by its IANA name.")
    mode: Mode = Mode.PROPOSE
    paused: bool = False
    capture: CaptureOptions | None = Field(default=None, description="60 seconds in windows of 10 by default.")
    planning: PlanningOptions = Field(default_factory=PlanningOptions)
    gates: GatesIn = Field(default_factory=GatesIn)
    rollout: RolloutOptions = Field(default_factory=RolloutOptions)

    def times(self) -> dict[str, Any]:
        return {"cron": self.cron, "interval_s": self.interval_s, "time_zone": self.time_zone}


class ScheduleChange(Strict):
    """Fields to change; what is left out stays. Capture, planning, gates and rollout are given as a whole."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "apply"}, {"cron": "0 */4 * * *"}]})

    name: Name | None = None
    cron: Cron | None = None
    interval_s: Interval | None = None
    time_zone: TimeZone | None = None
    mode: Mode | None = None
    capture: CaptureOptions | None = None
    planning: PlanningOptions | None = None
    gates: GatesIn | None = None
    rollout: RolloutOptions | None = None

    def changes(self) -> dict[str, Any]:
        """Return what was given, as :func:`api.service.schedules.change` takes it."""
        given = {name: value for name, value in self if name in self.model_fields_set and value is not None}
        return {name: value.value() if isinstance(value, GatesIn) else _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value


class ScheduleOut(BaseModel):
    """A schedule, and where it stands."""

    id: str = Field(examples=["sch_01k3x9v4e7q8w2m5n6p7r8s9t0"])
    name: str
    engine_id: str
    cron: str | None
    interval_s: float | None
    time_zone: str
    mode: Mode
    paused: bool
    capture: dict[str, Any]
    planning: dict[str, Any]
    gates: dict[str, Any]
    rollout: dict[str, Any]
    next_due_at: datetime | None = Field(description="null while it is paused.")
    last_tick_at: datetime | None
    last_success_at: datetime | None = Field(description="When a cycle last came to a decision about a plan.")
    cycles: int = Field(description="Cycles so far, also those that ended at once.")
    missed_ticks: int = Field(description="Ticks that passed while no worker ran; the last of them is made up for.")
    created_by: str
    created_at: datetime

    @classmethod
    def of(cls, row: Schedule) -> Self:
        """Show a row."""
        return cls(**{name: getattr(row, name) for name in cls.model_fields})
