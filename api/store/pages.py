"""Lists in pages: a cursor says after which row to go on, so that pages neither repeat nor skip rows."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from api.errors import BadCursor
from api.store.identifiers import IDENTIFIER

Row = TypeVar("Row")


@dataclass(frozen=True)
class Paging:
    """Which page is asked for."""

    limit: int
    cursor: str | None = None


@dataclass(frozen=True)
class Page(Generic[Row]):
    """Rows, and the cursor of the page behind them."""

    rows: tuple[Row, ...]
    next_cursor: str | None


def paged(session: Session, query: Select[Row], identifier: InstrumentedAttribute[str], paging: Paging) -> Page[Row]:
    """Return a page of rows with identifiers of :mod:`api.store.identifiers`, newest first.

    Raises
    ------
    BadCursor
    """
    if paging.cursor is not None:
        after = _decoded(paging.cursor)
        if not IDENTIFIER.fullmatch(after):
            raise BadCursor(f"the cursor {paging.cursor[:60]!r} is none of this list; leave it out to start over.")
        query = query.where(identifier < after)
    rows = session.scalars(query.order_by(identifier.desc()).limit(paging.limit + 1)).all()
    return _page(rows, paging, lambda row: str(getattr(row, identifier.key)))


def paged_by_number(
    session: Session, query: Select[Row], number: InstrumentedAttribute[int], paging: Paging
) -> Page[Row]:
    """Return a page of rows that are counted up, newest first. Raises :class:`BadCursor`."""
    if paging.cursor is not None:
        after = _decoded(paging.cursor)
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            raise BadCursor(f"the cursor {paging.cursor[:60]!r} is none of this list; leave it out to start over.")
        query = query.where(number < int(after))
    rows = session.scalars(query.order_by(number.desc()).limit(paging.limit + 1)).all()
    return _page(rows, paging, lambda row: str(getattr(row, number.key)))


def _page(rows: Any, paging: Paging, text_of: Any) -> Page[Any]:
    shown = tuple(rows[: paging.limit])
    more = len(rows) > paging.limit
    return Page(shown, _encoded(text_of(shown[-1])) if more else None)


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decoded(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise BadCursor(f"the cursor {cursor[:60]!r} is none of this list; leave it out to start over.") from None
