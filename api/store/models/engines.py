"""Engines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from api.states import EngineState
from api.store.columns import Document, Moment, OneOf
from api.store.models.base import Base


class Engine(Base):
    """An engine that was registered, and what was last read from it."""

    __tablename__ = "engines"
    __table_args__ = (
        Index(
            "uq_engines_name_there",
            "name",
            unique=True,
            sqlite_where=text("removed_at IS NULL"),
            postgresql_where=text("removed_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    url: Mapped[str] = mapped_column(String(500))
    key_reference: Mapped[str | None] = mapped_column(String(500))
    read_key_reference: Mapped[str | None] = mapped_column(String(500))
    labels: Mapped[dict[str, str]] = mapped_column(Document)
    costs: Mapped[list[list[float]] | None] = mapped_column(Document)
    """Square matrix of link costs between ranks; None takes the nodes that the engine reports."""

    state: Mapped[EngineState] = mapped_column(OneOf(EngineState))
    facts: Mapped[dict[str, Any] | None] = mapped_column(Document)
    """Shape, dispatch and abilities as last read; the map itself is not kept."""

    warnings: Mapped[list[dict[str, str]]] = mapped_column(Document)
    read_at: Mapped[datetime | None] = mapped_column(Moment)
    error: Mapped[dict[str, Any] | None] = mapped_column(Document)
    failures_in_row: Mapped[int] = mapped_column(Integer)
    failures: Mapped[int] = mapped_column(Integer, server_default="0")
    """All failures so far, for the counter of errors."""

    moved_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Bytes of experts that pushes of this service brought from another GPU so far."""

    resting_until: Mapped[datetime | None] = mapped_column(Moment)
    """Until then nothing is asked of it: the circuit is open."""

    version: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(Moment)
    removed_at: Mapped[datetime | None] = mapped_column(Moment)
