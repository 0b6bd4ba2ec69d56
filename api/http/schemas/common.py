"""What several kinds of things have in common."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Item = TypeVar("Item")

Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$"),
]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2000, pattern=r"^[^\x00]*$")]


class Strict(BaseModel):
    """A request: unknown fields are refused, so that a misspelt limit is not ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class PageOut(BaseModel, Generic[Item]):
    """A page of a list, newest first."""

    items: list[Item]
    next_cursor: str | None = Field(description="Ask for the next page with it; null on the last page.")


class Warned(BaseModel):
    """A warning."""

    code: str
    detail: str


class ErrorOut(BaseModel):
    """Why something failed."""

    model_config = ConfigDict(extra="allow")

    code: str
    detail: str
    remedies: list[str] = Field(default_factory=list)


class ReasonIn(Strict):
    """Why something is done; it stands in the audit log."""

    reason: Reason = Field(default="", examples=["Evening traffic moved to code."])


class AuditEventOut(BaseModel):
    """One change: who, when, what, why."""

    model_config = ConfigDict(from_attributes=True)

    number: int
    at: datetime
    who: str
    action: str
    subject: str
    subject_id: str
    from_state: str | None
    to_state: str | None
    why: str
    data: dict[str, Any]
    request_id: str | None
    job_id: str | None
