"""What recorded ids stand for: slots as a rule, experts where the engine maps none, shared experts behind either."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.notice import Notice
from profiler.errors import MapChanged
from profiler.readers.sglang_map import MapPeriod, trivial_map

_EXPECTED_BEHIND = 200.0
"""Tokens that slots from E on should have had; that they have none is then no chance."""


def ids_are_experts(counts_LP: npt.NDArray[np.int64], period: MapPeriod) -> bool:
    """Whether the recording counts experts although its layout says slots.

    Up to SGLang 0.5.16 some models without an all-to-all backend never turn experts into slots, and an engine without
    a dispatch algorithm does not either. With redundant slots it shows: those from E on have no token at all. With the
    layout an engine starts with, both readings are the same.

    Parameters
    ----------
    counts_LP : ndarray
        Tokens per slot of the whole recording.
    period : MapPeriod
    """
    layers, slots = period.map_LP.shape
    experts = period.experts
    if slots == experts or np.array_equal(period.map_LP, trivial_map(layers, slots, experts)):
        return False
    expected = float(counts_LP.sum()) * (slots - experts) / slots
    return expected >= _EXPECTED_BEHIND and not counts_LP[:, experts:].any()


def ids_are_experts_notice(name: str, period: MapPeriod) -> Notice:
    slots, experts = period.map_LP.shape[1], period.experts
    return Notice(
        "IDS_ARE_EXPERTS",
        f"{name}: no token has an id from {experts} to {slots - 1} although those slots hold experts, so ids are read "
        "as experts; the engine runs without a dispatch algorithm, which is wrong with this layout.",
    )


def map_changed(name: str, found: str) -> MapChanged:
    """Return the error for a recording across a change of layout."""
    return MapChanged(
        f"the layout changed while {name} was recorded ({found}), and the file holds the last layout only.",
        remedies=(
            "record again without a change in between",
            "give all layouts with the pass each began with (map history); one entry if there was no change",
        ),
    )
