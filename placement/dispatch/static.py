"""The table that each rank of the engine draws once under ``static`` dispatch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placement.dispatch.nearest import SPREAD, nearest_slots
from placement.layout import Layout
from placement.topology import Topology

ENGINE_SEED = 42


def static_slots(layout: Layout, topology: Topology) -> npt.NDArray[np.int32]:
    """Return the slot that every rank's own static table names for every expert.

    Each rank draws for itself, with the same seed, and only for the experts for which it prefers no slot. Such a draw
    deals the expert's slots to all ranks without a preference, as evenly as they divide, and the rank keeps what it
    dealt to itself. One generator runs through all layers of the map, so a rank's table depends on every earlier
    layer, dense ones included, and two ranks with different near replicas draw different deals: the outcome is not
    even, whatever each single deal is.

    Returns
    -------
    ndarray
        int32 [L, S, E] with S = GPUs; never :data:`SPREAD`.

    Notes
    -----
    SGLang ``srt/eplb/expert_location.py``, ``compute_logical_to_rank_dispatch_physical_map`` and ``_fair_choices``,
    called by ``init_by_mapping`` with a map that was collapsed to the rank's near replicas. Python keeps the results
    of ``random.Random.sample`` and ``shuffle`` for a seed across the versions that moeplan and the engine run on;
    the golden tables would show a change.
    """
    slot_LSE = nearest_slots(layout, topology)
    generators = [random.Random(ENGINE_SEED) for _ in range(layout.gpus)]
    for layer in range(layout.layers):
        slots_of_expert = _slots_by_expert(layout, layer)
        open_SE = slot_LSE[layer] == SPREAD
        for expert in np.flatnonzero(open_SE.any(axis=0)).tolist():
            open_ranks = np.flatnonzero(open_SE[:, expert]).tolist()
            for position, rank in enumerate(open_ranks):
                dealt = _deal_fairly(slots_of_expert[expert], len(open_ranks), generators[rank])
                slot_LSE[layer, rank, expert] = dealt[position]
    return slot_LSE


def _slots_by_expert(layout: Layout, layer: int) -> list[list[int]]:
    slots: list[list[int]] = [[] for _ in range(layout.experts)]
    for slot, expert in enumerate(layout.slot_to_expert_LP[layer].tolist()):
        slots[expert].append(slot)
    return slots


def _deal_fairly(slots: Sequence[int], ranks: int, generator: random.Random) -> list[int]:
    """Give ``ranks`` ranks one slot each: every slot equally often, the rest drawn, then shuffled."""
    rounds, rest = divmod(ranks, len(slots))
    dealt = list(slots) * rounds
    dealt.extend(generator.sample(slots, k=rest))
    generator.shuffle(dealt)
    return dealt
