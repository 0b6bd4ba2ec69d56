"""Plans and rollouts over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from api.http.schemas.common import ErrorOut, Name, Reason, Strict, Warned
from api.http.schemas.engines import Costs
from api.http.schemas.rollout_example import ROLLOUT_EXAMPLE
from api.plan_request import MAX_EXPERT_BYTES, MAX_MOVED_BYTES, MAX_SEED
from api.service.rollouts import (
    MAX_MEASURE_SECONDS,
    MAX_ROLL_BACK_MARGIN,
    USUAL_MEASURE_SECONDS,
    USUAL_ROLL_BACK_MARGIN,
)
from api.states import PlanState, RolloutState
from api.store.models import Plan, Rollout
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Objective
from profiler.engine.contract_push import MAX_PAUSE_S

MAX_PLAN_THREADS = 64
"""Threads that one plan may take of a worker's machine."""

WindowBy = Annotated[
    str, StringConstraints(pattern=r"^(file|domain|none|steps:[1-9][0-9]{0,8}|seconds:[0-9]{1,8}(\.[0-9]{1,6})?)$")
]


TraceIds = Annotated[list[Annotated[str, StringConstraints(max_length=40)]], Field(min_length=1, max_length=64)]
Row = Annotated[list[Annotated[int, Field(ge=0, le=65535)]], Field(min_length=1, max_length=65536)]
ModelName = Annotated[str, StringConstraints(max_length=80)]


class CurrentIn(Strict):
    """A layout as SGLang writes it: which expert every slot holds, layer by layer."""

    physical_to_logical_map: Annotated[list[Row], Field(min_length=1, max_length=1024)]

    @field_validator("physical_to_logical_map")
    @classmethod
    def _rectangular(cls, rows: list[list[int]]) -> list[list[int]]:
        if len({len(row) for row in rows}) != 1:
            raise ValueError("every layer has as many slots as the others")
        return rows


class PlanIn(Strict):
    """A plan to make; the options are those of `moeplan plan`. With an engine, its shape and dispatch are usual.

    Every option has one name here and there; what the command line reads from a file is sent itself.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"trace_ids": ["trc_01k3x9v4e7q8w2m5n6p7r8s9t0"], "engine_id": "eng_01k3x9v4e7q8w2m5n6p7r8s9t0"},
                {"trace_ids": ["trc_01k3x9v4e7q8w2m5n6p7r8s9t0"], "gpus": 32, "redundant": 32, "objective": "balance"},
            ]
        }
    )

    trace_ids: TraceIds
    test_trace_ids: TraceIds | None = Field(default=None, description="Recordings to judge on, instead of holdout.")
    name: Name | None = None
    engine_id: str | None = Field(default=None, max_length=40)
    model: ModelName | dict[str, Any] | None = Field(
        default=None, description="A model that comes with moeplan, by name, or a config.json itself."
    )
    gpus: int | None = Field(default=None, ge=1, le=4096)
    nodes: int | None = Field(default=None, ge=1, le=4096)
    costs: Costs | None = None
    live_gpus: str | None = Field(
        default=None, max_length=20_000, pattern=r"^[0-9]+(,[0-9]+)*$", description="GPUs left after failures."
    )
    slots_per_gpu: int | None = Field(default=None, ge=1, le=65536)
    redundant: int | None = Field(default=None, ge=0, le=10**7)
    fit: Literal[True] | None = Field(default=None, description="Find the fewest slots that reach local_target.")
    draft_experts: int | None = Field(default=None, ge=1, le=65536)
    draft_redundant: int | None = Field(default=None, ge=0, le=10**7)
    local_target: float | None = Field(default=None, gt=0, le=1)
    local_scope: LocalScope | None = None
    objective: Objective | None = None
    max_imbalance: float | None = Field(default=None, ge=1, le=4096)
    max_overflow: float | None = Field(default=None, ge=0, le=1)
    hedge: float | None = Field(default=None, ge=0, lt=1)
    dispatch: Dispatch | None = None
    window_by: WindowBy | None = None
    sources: Literal["auto", "uniform"] | None = None
    phase: Literal["prefill", "decode"] | None = None
    holdout: float | None = Field(default=None, gt=0, lt=1)
    current: CurrentIn | None = Field(default=None, description="The layout that runs now, where no engine is asked.")
    capacity_factor: float | None = Field(default=None, gt=0, le=4096)
    sample_tokens: int | None = Field(default=None, ge=1, le=2**31)
    expert_groups: int | None = Field(default=None, ge=1, le=65536)
    expert_bytes: int | None = Field(default=None, ge=1, le=MAX_EXPERT_BYTES)
    max_moved_slots: int | None = Field(default=None, ge=0, le=MAX_MOVED_BYTES)
    max_moved_bytes: int | None = Field(default=None, ge=0, le=MAX_MOVED_BYTES)
    pareto: Literal[True] | None = Field(default=None, description="Also plan within shares of the free plan's moves.")
    hardware: Annotated[str, StringConstraints(max_length=80)] | dict[str, Any] | None = Field(
        default=None, description="A profile that comes with moeplan, by name, or what a profile file holds."
    )
    step_phase: Literal["prefill", "decode"] | None = None
    step_tokens: int | None = Field(default=None, ge=1, le=2**24)
    time_limit_s: float | None = Field(default=None, gt=0, le=86400)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    threads: int | None = Field(default=None, ge=1, le=MAX_PLAN_THREADS)

    def options(self) -> dict[str, Any]:
        """Return what was given of the options of a plan, as JSON."""
        return self.model_dump(mode="json", exclude={"trace_ids", "name", "engine_id", "current"}, exclude_none=True)


class PlanOut(BaseModel):
    """A plan. Its figures are those of the worst window and of all windows together, predicted."""

    id: str = Field(examples=["pln_01k3x9v4e7q8w2m5n6p7r8s9t0"])
    name: str
    state: PlanState
    sentence: str
    engine_id: str | None
    request: dict[str, Any] = Field(description="The options, with what was taken from the engine.")
    layout_hash: str | None
    current_hash: str | None = Field(description="The layout that the engine ran when it was planned.")
    status: str | None = Field(examples=["optimal", "feasible", "target_missed"])
    local_gpu: float | None
    imbalance: float | None = Field(description="Of the worst window.")
    gap: float | None = Field(description="Distance from the proven bound.")
    moved_slots: int | None
    solve_seconds: float | None
    error: ErrorOut | None
    job_id: str | None
    created_by: str
    created_at: datetime

    @classmethod
    def of(cls, row: Plan) -> Self:
        """Show a row."""
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "sentence"}
        return cls(**fields, sentence=row.state.sentence)


class RolloutIn(Strict):
    """An approved plan to bring into an engine."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"plan_id": "pln_01k3x9v4e7q8w2m5n6p7r8s9t0", "layers_per_chunk": 8, "pause_s": 0.5},
                {"plan_id": "pln_01k3x9v4e7q8w2m5n6p7r8s9t0", "measure_seconds": 120, "roll_back_margin": 0.02},
            ]
        }
    )

    plan_id: str = Field(max_length=40)
    engine_id: str | None = Field(default=None, max_length=40, description="The plan's own by default.")
    layers_per_chunk: int | None = Field(
        default=None, ge=1, le=4096, description="Layers changed between two engine steps; all at once by default."
    )
    pause_s: float | None = Field(default=None, ge=0, le=MAX_PAUSE_S, description="Serving between two chunks.")
    measure_seconds: float = Field(
        default=USUAL_MEASURE_SECONDS,
        ge=0,
        le=MAX_MEASURE_SECONDS,
        description="How long demand is recorded after the push to judge the layout by; 0 measures nothing.",
    )
    roll_back_margin: float = Field(
        default=USUAL_ROLL_BACK_MARGIN,
        ge=0,
        le=MAX_ROLL_BACK_MARGIN,
        description="The layout before is put back when the figure that the plan was made for is worse by more than "
        "this share of the figure that the layout before has on the same traffic.",
    )
    reason: Reason = ""


class RolloutOut(BaseModel):
    """A layout on its way into an engine, what it was predicted to be worth and what it was measured to be."""

    model_config = ConfigDict(json_schema_extra={"examples": [ROLLOUT_EXAMPLE]})

    id: str = Field(examples=["rol_01k3x9v4e7q8w2m5n6p7r8s9t0"])
    engine_id: str
    plan_id: str | None
    takes_back_id: str | None = Field(description="The rollout that this one takes back.")
    state: RolloutState
    sentence: str
    from_hash: str | None
    to_hash: str
    pace: dict[str, Any]
    runs_hash: str | None = Field(description="The layout that the engine ran when last read for this rollout.")
    result: dict[str, Any] | None = Field(description="What the engine said of the push.")
    taken_back: dict[str, Any] | None = Field(description="What it said when the layout before was put back by itself.")
    measure_seconds: float
    roll_back_margin: float
    predicted: dict[str, Any] | None = Field(description="The plan's own figures.")
    measured: dict[str, Any] | None = Field(description="The layout's figures on the traffic after the push.")
    measured_before: dict[str, Any] | None = Field(description="Those of the layout before, on the same traffic.")
    verdict: dict[str, Any] | None = Field(description="What the comparison came to, or why there was none.")
    warnings: list[Warned]
    error: ErrorOut | None
    reason: str
    job_id: str | None
    created_by: str
    created_at: datetime
    ended_at: datetime | None

    @classmethod
    def of(cls, row: Rollout) -> Self:
        """Show a row."""
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "sentence"}
        return cls(**fields, sentence=row.state.sentence)
