"""What all tables have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase

NAMES: Mapping[str, str] = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Every constraint has a name that does not depend on the database, so that a migration can change it."""


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata: ClassVar[MetaData] = MetaData(naming_convention=dict(NAMES))
    type_annotation_map: ClassVar[Mapping[Any, Any]] = {}
