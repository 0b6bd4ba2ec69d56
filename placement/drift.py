"""How far traffic has moved away from the demand a layout was planned on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.errors import BadOption, EmptyProfile, LayoutMismatch
from placement.notice import Notice

DRIFT_LIMIT = 0.1
"""Default limit: in recorded routing, two halves of one task's requests differ by 0.02 to 0.06 (sampling), prefill and
decode of one model by 0.19, tasks and languages by 0.28 to 0.45."""


def total_variation_L(demand_a: Demand, demand_b: Demand) -> npt.NDArray[np.float64]:
    """Return the total variation between two expert profiles, by layer.

    A layer's profile is its demand by expert, summed over windows and sources and divided by its sum. The total
    variation is half the sum of absolute differences: 0 for equal profiles, 1 for disjoint ones, and the share of the
    traffic that would have to go to other experts to make one the other.

    Returns
    -------
    ndarray
        float64 [L]; NaN in layers without traffic in either demand (dense layers among them).

    Raises
    ------
    LayoutMismatch
        The demands differ in layers or experts.
    """
    if (demand_a.layers, demand_a.experts) != (demand_b.layers, demand_b.experts):
        raise LayoutMismatch(
            f"the demands describe different models: {demand_a.layers} layers x {demand_a.experts} experts and "
            f"{demand_b.layers} x {demand_b.experts}."
        )
    variation_L: npt.NDArray[np.float64] = np.abs(_profile_LE(demand_a) - _profile_LE(demand_b)).sum(axis=1) / 2
    return variation_L


def profile_drift_notices(planned: Demand, seen: Demand, *, limit: float = DRIFT_LIMIT) -> tuple[Notice, ...]:
    """Return one ``PROFILE_DRIFT`` notice when the mean total variation over MoE layers is above ``limit``, else none.

    Parameters
    ----------
    planned
        The demand that the layout was planned on.
    seen
        Later demand.
    limit
        0..1.

    Raises
    ------
    LayoutMismatch
        The demands differ in layers or experts.
    EmptyProfile
        No layer has traffic in both.
    BadOption
        ``limit`` outside 0..1.
    """
    if not 0 <= limit <= 1:
        raise BadOption(f"the drift limit is {limit}; total variation runs from 0 to 1.")
    variation_L = total_variation_L(planned, seen)
    compared = np.flatnonzero(~np.isnan(variation_L))
    if not compared.size:
        raise EmptyProfile("no layer has traffic in both demands, so their profiles cannot be compared.")
    mean = float(variation_L[compared].mean())
    if mean <= limit:
        return ()
    worst = int(compared[variation_L[compared].argmax()])
    detail = (
        f"the traffic differs from the one planned for by a total variation of {mean:.2f} on average over "
        f"{compared.size} MoE layers (limit {limit:.2f}; most in layer {worst}: {variation_L[worst]:.2f}): record a "
        "fresh profile and plan again."
    )
    return (Notice("PROFILE_DRIFT", detail),)


def _profile_LE(demand: Demand) -> npt.NDArray[np.float64]:
    tokens_LE: npt.NDArray[np.int64] = demand.tokens_WLE.sum(axis=0)
    total_L1 = tokens_LE.sum(axis=1, keepdims=True)
    profile_LE = np.full(tokens_LE.shape, np.nan)
    np.divide(tokens_LE, total_L1, out=profile_LE, where=total_L1 > 0)
    return profile_LE
