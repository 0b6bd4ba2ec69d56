"""The names of the engine's dispatch rules."""

from __future__ import annotations

from enum import StrEnum


class Dispatch(StrEnum):
    """The engine's rules for choosing among an expert's replicas.

    ``nearest-dynamic`` and ``nearest-static`` need an all-to-all backend. ``even`` is what happens without one: every
    rank sees every token and all agree on the replica. Its loads are also those of a map from the engine's own EPLB
    under dynamic dispatch, because the engine does not collapse such maps to near replicas.
    """

    NEAREST_DYNAMIC = "nearest-dynamic"
    NEAREST_STATIC = "nearest-static"
    EVEN = "even"
