"""Engines over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.http.schemas.common import ErrorOut, Name, Strict, Warned
from api.states import EngineState
from api.store.models import Engine

Url = Annotated[str, StringConstraints(max_length=500, pattern=r"^https?://[^\s\x00]+$")]
Reference = Annotated[str, StringConstraints(max_length=500)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
Labels = Annotated[dict[Label, Label], Field(max_length=64)]
Costs = Annotated[
    list[Annotated[list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(max_length=1024)]],
    Field(
        min_length=1,
        max_length=1024,
        description="Square matrix: cost of the link from rank to rank, 0 on the diagonal.",
    ),
]
KEY_TEXT = (
    "Where the engine's (admin) key is: `env:NAME` or `file:/PATH` of the service's machine. Never the key itself."
)


class EngineIn(Strict):
    """An engine to register."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "prefill-eu1", "url": "http://10.0.0.7:30000", "key": "env:PREFILL_ADMIN_KEY",
                    "labels": {"cluster": "eu1"},
                }
            ]
        }
    )  # fmt: skip

    name: Name
    url: Url
    key: Reference | None = Field(default=None, description=KEY_TEXT)
    read_key: Reference | None = Field(
        default=None, description="The engine's API key, as a reference, where it has both keys."
    )
    labels: Labels = Field(default_factory=dict)
    costs: Costs | None = None
    topology_text: str | None = Field(
        default=None, max_length=200_000, description="What `nvidia-smi topo -m` prints there, instead of costs."
    )


class EngineChange(Strict):
    """Fields to change; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"labels": {"cluster": "eu2"}}]})

    name: Name | None = None
    url: Url | None = None
    key: Reference | None = Field(default=None, description=KEY_TEXT)
    read_key: Reference | None = None
    labels: Labels | None = None
    costs: Costs | None = None


class EngineOut(BaseModel):
    """An engine, and what was last read from it."""

    id: str = Field(examples=["eng_01k3x9v4e7q8w2m5n6p7r8s9t0"])
    name: str
    url: str
    has_key: bool = Field(description="Whether a key is referred to; the reference is not shown.")
    labels: dict[str, str]
    costs: list[list[float]] | None
    state: EngineState
    sentence: str = Field(description="What the state means.")
    facts: dict[str, Any] | None = Field(description="Shape, dispatch and abilities as last read.")
    warnings: list[Warned]
    error: ErrorOut | None
    read_at: datetime | None
    failures_in_row: int
    resting_until: datetime | None = Field(description="Until then nothing is asked of it.")
    created_at: datetime

    @classmethod
    def of(cls, row: Engine) -> Self:
        """Show a row; secrets' references stay inside."""
        fields = {name: getattr(row, name) for name in cls.model_fields if name not in ("has_key", "sentence")}
        return cls(**fields, has_key=row.key_reference is not None, sentence=row.state.sentence)
