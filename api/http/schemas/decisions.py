"""Decisions over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from api.states import Outcome
from api.store.models import Decision


class DecisionOut(BaseModel):
    """How a rebalancing cycle ended."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "dec_01k3x9v4e7q8w2m5n6p7r8s9t0", "schedule_id": "sch_01k3x9v4e7q8w2m5n6p7r8s9t0",
                    "engine_id": "eng_01k3x9v4e7q8w2m5n6p7r8s9t0", "cycle_id": "cyc_01k3x9v4e7q8w2m5n6p7r8s9t0",
                    "outcome": "nothing", "meaning": "The layout stays: no plan is worth its moves.",
                    "code": "GAIN_BELOW_THRESHOLD",
                    "sentence": "The layout stays: on the held-out windows 61.4% of routed tokens stay on their home "
                    "GPU with the plan, 60.9% with the running layout; the gain of 0.5 points is below the least gain "
                    "of 1 points.",
                    "numbers": {"metric": "local_gpu", "before": 0.609, "planned": 0.614, "gain": 0.005},
                    "trace_id": "trc_01k3x9v4e7q8w2m5n6p7r8s9t0", "plan_id": "pln_01k3x9v4e7q8w2m5n6p7r8s9t0",
                    "rollout_id": None, "job_id": "job_01k3x9v4e7q8w2m5n6p7r8s9t0",
                    "created_at": "2026-11-30T04:31:12Z",
                }
            ]
        }
    )  # fmt: skip

    id: str
    cycle_id: str
    schedule_id: str
    engine_id: str
    outcome: Outcome
    meaning: str = Field(description="What the outcome means.")
    code: str = Field(description="The gate that closed, or what went wrong.")
    sentence: str
    numbers: dict[str, Any] = Field(
        description="What was found: figures of the running layout and of the plan on the held-out windows, gain, "
        "moves, drift, tokens, every gate, and what was measured."
    )
    trace_id: str | None
    plan_id: str | None
    rollout_id: str | None
    job_id: str | None
    created_at: datetime

    @classmethod
    def of(cls, row: Decision) -> Self:
        """Show a row."""
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "meaning"}
        return cls(**fields, meaning=row.outcome.sentence)
