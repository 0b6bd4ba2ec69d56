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
    profile_a_LE, profile_b_LE = (_profile_LE(demand.tokens_WLE.sum(axis=0)) for demand in (demand_a, demand_b))
    variation_L: npt.NDArray[np.float64] = np.abs(profile_a_LE - profile_b_LE).sum(axis=1) / 2
    return variation_L


def jensen_shannon_distance_L(
    tokens_a_LE: npt.NDArray[np.integer], tokens_b_LE: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """Return the Jensen-Shannon distance between two expert profiles, by layer.

    With the profiles p and q of a layer and their mean m it is ``sqrt((KL(p | m) + KL(q | m)) / 2)`` in base 2: a
    metric from 0 for equal profiles to 1 for disjoint ones (Endres and Schindelin 2003, doi:10.1109/TIT.2003.813506).

    Parameters
    ----------
    tokens_a_LE, tokens_b_LE
        Routed tokens by layer and expert, [L, E].

    Returns
    -------
    ndarray
        float64 [L]; NaN in layers without traffic in either (dense layers among them).

    Raises
    ------
    LayoutMismatch
        The tables differ in layers or experts.
    """
    if tokens_a_LE.shape != tokens_b_LE.shape:
        raise LayoutMismatch(
            f"the profiles describe different models: layers x experts are {tokens_a_LE.shape} and {tokens_b_LE.shape}."
        )
    profile_a_LE, profile_b_LE = _profile_LE(tokens_a_LE), _profile_LE(tokens_b_LE)
    mean_LE = (profile_a_LE + profile_b_LE) / 2
    divergence_L = (_information_L(profile_a_LE, mean_LE) + _information_L(profile_b_LE, mean_LE)) / 2
    distance_L: npt.NDArray[np.float64] = np.sqrt(np.clip(divergence_L, 0.0, 1.0))
    return distance_L


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


def _information_L(profile_LE: npt.NDArray[np.float64], mean_LE: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the Kullback-Leibler divergence from the mean in bits; experts without traffic add nothing."""
    ratio_LE = np.divide(profile_LE, mean_LE, out=np.ones_like(profile_LE), where=profile_LE > 0)
    information_L: npt.NDArray[np.float64] = (profile_LE * np.log2(ratio_LE)).sum(axis=1)
    return information_L


def _profile_LE(tokens_LE: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    total_L1 = tokens_LE.sum(axis=1, keepdims=True)
    profile_LE = np.full(tokens_LE.shape, np.nan)
    np.divide(tokens_LE, total_L1, out=profile_LE, where=total_L1 > 0)
    return profile_LE
