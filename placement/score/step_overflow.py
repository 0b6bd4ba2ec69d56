"""What single engine steps have above the caps: a capped engine reroutes and drops step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from placement.dispatch import DispatchTable
from placement.metrics import StepOverflow
from placement.score.overflow import overflow_of_layer
from placement.step_counts import StepCounts
from placement.tokens import PHASE_NUMBERS

MOST_FLOWS = 16_000
"""Maximum flows (one per step and layer) that one layout and phase is judged by: a tenth of a millisecond each."""

TILE_NUMBERS = 2**20


def step_overflow(steps: StepCounts, table: DispatchTable, *, capacity_factor: float) -> tuple[StepOverflow, ...]:
    """Measure the overflow of single steps, phase by phase.

    A GPU's cap is ``capacity_factor`` x the step's mean GPU load of the layer. Where dispatch draws replicas the loads
    are expected ones; overflow is convex in the loads, so what really overflows is at least this on average.

    Parameters
    ----------
    steps
        A uniform sample of whole steps; where it holds more than :data:`MOST_FLOWS` steps x layers, every n-th.
    table
        Dispatch of the layout.
    capacity_factor
        > 0.

    Returns
    -------
    tuple of StepOverflow
        One for every phase that has steps with tokens.
    """
    found = []
    for phase, number in PHASE_NUMBERS.items():
        chosen_Z = np.flatnonzero((steps.phase_Z == number) & steps.tokens_ZLSE.any(axis=(1, 2, 3)))
        if not chosen_Z.size:
            continue
        layers = np.flatnonzero(steps.tokens_ZLSE[chosen_Z].any(axis=(0, 2, 3))).tolist()
        chosen_Z = chosen_Z[:: -(-len(chosen_Z) * len(layers) // MOST_FLOWS)]
        tokens, overflow, rerouted = [], [], []
        for layer in layers:
            hosts_EG = table.layout.replicas_LEG[layer] > 0
            for served_EG in _served(steps, chosen_Z, table, layer):
                above = overflow_of_layer(served_EG, hosts_EG, capacity_factor=capacity_factor)
                tokens.append(float(served_EG.sum()))
                overflow.append(above.tokens)
                rerouted.append(above.rerouted)
        whole = math.fsum(tokens)
        share = math.fsum(overflow) / whole
        moved = min(math.fsum(rerouted) / whole, share)
        found.append(StepOverflow(capacity_factor, share, moved, share - moved, phase=phase, steps=len(chosen_Z)))
    return tuple(found)


def _served(
    steps: StepCounts, chosen_Z: npt.NDArray[np.int64], table: DispatchTable, layer: int
) -> Iterator[npt.NDArray[np.float64]]:
    """Give the tokens that every GPU computes of every expert, float64 [E, G], for the steps that use the layer."""
    share_SEG = table.share_SEG(layer) if steps.sources == "measured" else table.mean_share_EG(layer)[None]
    tile = max(1, TILE_NUMBERS // share_SEG[0].size)
    for start in range(0, len(chosen_Z), tile):
        tokens_ZSE = steps.tokens_ZLSE[chosen_Z[start : start + tile], layer].astype(np.float64)
        served_ZEG = np.einsum("zse,seg->zeg", tokens_ZSE, share_SEG)
        yield from served_ZEG[tokens_ZSE.any(axis=(1, 2))]
