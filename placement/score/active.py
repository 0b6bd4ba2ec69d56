"""Active experts: how many experts' weights the busiest GPU must read in one decode step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.dispatch import DispatchTable
from placement.step_counts import StepCounts
from placement.tokens import PHASE_NUMBERS

TINIEST = 1e-300
"""Stands for a probability of 0 in logarithms."""

TILE_NUMBERS = 2**21


def decode_steps(steps: StepCounts) -> npt.NDArray[np.int64]:
    """Return the steps to judge by: those that decode, or, where none says so, those not known to prefill."""
    decoding = np.flatnonzero(steps.phase_Z == PHASE_NUMBERS["decode"])
    return decoding if decoding.size else np.flatnonzero(steps.phase_Z != PHASE_NUMBERS["prefill"])


def active_experts_ZLG(
    steps: StepCounts, chosen_Z: npt.NDArray[np.int64], table: DispatchTable
) -> npt.NDArray[np.float64]:
    """Return the expected number of distinct experts that are hit on every GPU in every step.

    Tokens choose among replicas independently: GPU g computes expert e unless every token that chose it went
    elsewhere, with probability prod_s (1 - share[s, e, g]) ^ tokens[s, e]. Under uniform sources a token's home is
    drawn too, so the share is the mean over sources.

    Returns
    -------
    ndarray
        float64 [Z, L, G] for the chosen steps.
    """
    layout, gpus = table.layout, table.topology.gpus
    active_ZLG = np.zeros((len(chosen_Z), layout.layers, gpus))
    tile = max(1, TILE_NUMBERS // (layout.experts * gpus))
    for layer in range(layout.layers):
        share_SEG = table.share_SEG(layer) if steps.sources == "measured" else table.mean_share_EG(layer)[None]
        # Rounding may leave a sum of shares a hair above 1.
        log_ESG = np.log(np.maximum(1.0 - np.minimum(share_SEG, 1.0), TINIEST)).transpose(1, 0, 2)
        for start in range(0, len(chosen_Z), tile):
            part_Z = chosen_Z[start : start + tile]
            tokens_EZS = steps.tokens_ZLSE[part_Z, layer].astype(np.float64).transpose(2, 0, 1)
            missed_EZG = np.exp(tokens_EZS @ log_ESG)
            active_ZLG[start : start + tile, layer] = (1.0 - missed_EZG).sum(axis=0)
    return active_ZLG


def active_experts(steps: StepCounts, table: DispatchTable) -> float | None:
    """Return the largest GPU's active experts, averaged over steps and the layers that a step uses.

    None where no step is known to decode (see :func:`decode_steps`).
    """
    chosen_Z = decode_steps(steps)
    used_ZL = steps.tokens_ZLSE[chosen_Z].any(axis=(2, 3))
    if not used_ZL.any():
        return None
    return float(active_experts_ZLG(steps, chosen_Z, table).max(axis=2)[used_ZL].mean())
