"""Recordings that moeplan ships, for the demo and tests; README.md beside this file says where they come from."""

from __future__ import annotations

from pathlib import Path

from profiler.errors import InputNotFound

MIXED = "tiny_moe_mixed"
AFFINITY = "tiny_moe_affinity"


def recording_path(name: str) -> Path:
    """Return the file of a shipped token trace.

    Raises
    ------
    InputNotFound
        There is none of this name.
    """
    if name not in (MIXED, AFFINITY):
        raise InputNotFound(f"moeplan ships no recording {name!r}; there are {MIXED} and {AFFINITY}.")
    return Path(__file__).parent / f"{name}.npz"
