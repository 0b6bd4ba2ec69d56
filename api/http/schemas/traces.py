"""Recordings over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from api.http.schemas.common import ErrorOut, Name, Strict, Warned
from api.service.traces import MAX_CAPTURE_S, MAX_CAPTURE_STEPS
from api.states import TraceState
from api.store.models import Trace


class CaptureIn(Strict):
    """A recording to make from a live engine. It has an end: give `steps` or `seconds`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"engine_id": "eng_01k3x9v4e7q8w2m5n6p7r8s9t0", "steps": 2000}]}
    )

    engine_id: str = Field(max_length=40)
    name: Name | None = None
    steps: int | None = Field(default=None, ge=1, le=MAX_CAPTURE_STEPS, description="Engine steps.")
    seconds: float | None = Field(default=None, gt=0, le=MAX_CAPTURE_S)
    window_steps: int | None = Field(default=None, ge=1, le=MAX_CAPTURE_STEPS)
    window_seconds: float | None = Field(default=None, gt=0, le=MAX_CAPTURE_S)


class TraceChange(Strict):
    """Fields to change; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kept": True}]})

    name: Name | None = None
    kept: bool | None = Field(default=None, description="Kept beyond the time of retention.")


class TraceOut(BaseModel):
    """A recording."""

    id: str = Field(examples=["trc_01k3x9v4e7q8w2m5n6p7r8s9t0"])
    name: str
    state: TraceState
    sentence: str
    origin: str = Field(examples=["upload", "capture"])
    engine_id: str | None
    size_bytes: int | None
    facts: dict[str, Any] | None = Field(description="What it holds, as `moeplan trace info` says.")
    warnings: list[Warned]
    error: ErrorOut | None
    job_id: str | None
    kept: bool
    expires_at: datetime | None
    created_by: str
    created_at: datetime

    @classmethod
    def of(cls, row: Trace) -> Self:
        """Show a row."""
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "sentence"}
        return cls(**fields, sentence=row.state.sentence)
