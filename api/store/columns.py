"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sqlalchemy import JSON, DateTime, Dialect, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

Kind = TypeVar("Kind", bound=StrEnum)

Document = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""A small JSON value; anything large is a stored file."""


class Moment(TypeDecorator[datetime]):
    """A point in time, always with a time zone and always UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class OneOf(TypeDecorator[Kind], Generic[Kind]):
    """A value of an enum, stored as its text."""

    impl = String(24)
    cache_ok = True

    def __init__(self, kind: type[Kind]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Kind | None, dialect: Dialect) -> str | None:
        return None if value is None else str(self.kind(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Kind | None:
        return None if value is None else self.kind(value)


def now() -> datetime:
    """Return the present time, to the microsecond that both databases keep."""
    return datetime.now(UTC)


def iso(moment: datetime | None) -> Any:
    """Return a time as JSON holds it."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
