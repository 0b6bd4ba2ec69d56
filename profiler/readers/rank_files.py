"""Recordings that come as one file per rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placement.notice import Notice

SOURCES_REPEATED = "SOURCES_REPEATED"
"""Every rank counted every token, so whose tokens they were cannot be told."""


def missing_ranks(found: Sequence[int], *, expected: int | None) -> tuple[int, ...]:
    """Return the ranks below the highest one found (or below ``expected``) that have fewer files than the others."""
    files = Counter(found)
    ranks = max(max(files, default=-1) + 1, expected or 0)
    most = max(files.values(), default=1)
    return tuple(rank for rank in range(ranks) if files[rank] < most)


def sources_repeated_notice(name: str, ranks: int) -> Notice:
    """Return the warning that every rank counted every token."""
    return Notice(
        SOURCES_REPEATED,
        f"{name}: all {ranks} ranks hold the same counts, so each counted every token: the sum is {ranks} times the "
        "traffic (shares are right), and home GPUs are unknown.",
    )
