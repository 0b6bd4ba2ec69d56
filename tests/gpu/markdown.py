"""Findings as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Finding = dict[str, Any]


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; None is an empty cell."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def of_kind(found: Sequence[Finding], kind: str) -> list[Finding]:
    """Return the findings of a kind, in order."""
    return [finding for finding in found if finding["kind"] == kind]
