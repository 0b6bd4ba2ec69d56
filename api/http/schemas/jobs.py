"""Jobs over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, Field

from api.http.schemas.common import ErrorOut
from api.states import JobKind, JobState
from api.store.models import Job


class JobOut(BaseModel):
    """A job and how far it is."""

    id: str = Field(examples=["job_01k3x9v4e7q8w2m5n6p7r8s9t0"])
    kind: JobKind
    state: JobState
    sentence: str = Field(description="What the state means.")
    engine_id: str | None
    subject_id: str = Field(description="The trace, plan, rollout or cycle that it is for.")
    progress: float = Field(ge=0, le=1)
    step: str
    result: dict[str, Any] | None
    error: ErrorOut | None
    attempts: int = Field(description="Above 1: a worker died, and another went on with it.")
    created_by: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cancel_asked_at: datetime | None

    @classmethod
    def of(cls, row: Job) -> Self:
        """Show a row."""
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "sentence"}
        return cls(**fields, sentence=row.state.sentence)
