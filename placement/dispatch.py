"""How the engine picks one replica for a (token, expert) pair."""

from __future__ import annotations

from enum import StrEnum


class Dispatch(StrEnum):
    """The engine's rules for choosing among an expert's replicas."""

    NEAREST_DYNAMIC = "nearest-dynamic"
    NEAREST_STATIC = "nearest-static"
    EVEN = "even"
