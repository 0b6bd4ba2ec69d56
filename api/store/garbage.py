"""Which stored files are still needed."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.store.files import FileStore
from api.store.models import Plan, Rollout, Trace, TraceUpload

YOUNG_S = 3600.0
"""A file is stored before the row that names it is committed; so young ones are left alone."""

COLUMNS = (Trace.sha256, TraceUpload.sha256, Plan.sha256, Plan.current_sha256, Rollout.from_sha256)


def needed(session: Session) -> set[str]:
    """Return the names of all files that a row refers to."""
    found = (name for column in COLUMNS for name in session.scalars(select(column).distinct()))
    return {name for name in found if name is not None}


def remove_unneeded(session: Session, store: FileStore, *, at_s: float, young_s: float = YOUNG_S) -> int:
    """Remove stored files that no row refers to; return how many."""
    # Files first: one that is stored and referred to in between is young, or in the newer answer.
    present = [(name, made_s) for name, made_s in store.stored() if at_s - made_s > young_s]
    wanted = needed(session)
    unneeded = [name for name, _ in present if name not in wanted]
    for name in unneeded:
        store.remove(name)
    return len(unneeded)
