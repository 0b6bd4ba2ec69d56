"""A lower bound on what overflows a capacity factor, whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.imbalance import imbalance_bound
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.slots import check_slots_per_gpu
from placement.topology import Topology

BISECTIONS = 40
"""Steps in which the capacity factor that would do is narrowed down."""


@dataclass(frozen=True)
class OverflowBound:
    """A lower bound on the worst window's overflow share, and where most of it comes from.

    Attributes
    ----------
    overflow_share : float
        0..1; every layout has a window in which at least this share of the demand is above the caps.
    window, layer : int
        The worst window, and the layer that weighs most in it.
    experts, hosts : int
        So many of the layer's most loaded experts can be on at most so many GPUs. 0 where the busiest GPU alone
        gives more (:func:`placement.bounds.imbalance_bound`).
    relaxation : str
    """

    overflow_share: float
    window: int
    layer: int
    experts: int
    hosts: int
    relaxation: str


def overflow_bound(
    demand: Demand, topology: Topology, slots_per_gpu: int, dispatch: Dispatch, *, capacity_factor: float
) -> OverflowBound:
    """Bound the worst window's overflow share from below.

    Proof. In a window and layer, the k most loaded experts have at most ``k + redundant`` slots, since every other
    expert needs one, so at most ``h = min(gpus, k + redundant)`` GPUs hold them. Whatever the dispatch, these GPUs
    compute all tokens of those experts, and at most ``h`` caps of them fit below the caps: the rest overflows. The
    same holds for the busiest GPU alone and the load that it reaches in every layout. The larger of these, summed
    over a window's layers, bounds the window.

    Parameters
    ----------
    demand
        Not empty.
    capacity_factor
        > 0; a GPU's cap is this times the mean GPU load of the window and layer.

    Raises
    ------
    SlotsBelowExperts, RedundancyTooHigh, EmptyProfile
    """
    counted_WL, experts_WL = _crowded_WL(demand, topology, slots_per_gpu, capacity_factor)
    mean_WL = demand.tokens_WLE.sum(axis=2, dtype=np.float64) / topology.gpus
    busiest_WL = imbalance_bound(demand, topology, slots_per_gpu, dispatch).max_load_WL - capacity_factor * mean_WL
    tokens_WL = np.maximum(np.maximum(counted_WL, busiest_WL), 0.0)
    share_W = _share_W(tokens_WL, demand)
    window = int(share_W.argmax())
    layer = int(tokens_WL[window].argmax())
    experts = int(experts_WL[window, layer]) if counted_WL[window, layer] >= busiest_WL[window, layer] else 0
    return OverflowBound(
        overflow_share=float(share_W[window]),
        window=window,
        layer=layer,
        experts=experts,
        hosts=min(topology.gpus, experts + _redundant(demand, topology, slots_per_gpu)) if experts else 0,
        relaxation="most loaded experts on as many GPUs as they can have slots, per window and layer",
    )


def smallest_capacity_factor(demand: Demand, topology: Topology, slots_per_gpu: int, *, max_overflow: float) -> float:
    """Return a capacity factor below which no layout keeps the overflow share at or below ``max_overflow``."""
    low, high = 0.0, float(topology.gpus)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        crowded_WL, _ = _crowded_WL(demand, topology, slots_per_gpu, middle)
        low, high = (middle, high) if _share_W(crowded_WL, demand).max() > max_overflow else (low, middle)
    return low


def smallest_slots_for_overflow(
    demand: Demand, topology: Topology, slots_per_gpu: int, *, capacity_factor: float, max_overflow: float
) -> int | None:
    """Return slots per GPU below which no layout keeps the overflow share; None where slots do not help."""
    for slots in range(slots_per_gpu, demand.experts + 1):
        crowded_WL, _ = _crowded_WL(demand, topology, slots, capacity_factor)
        if _share_W(crowded_WL, demand).max() <= max_overflow:
            return slots
    return None


def _crowded_WL(
    demand: Demand, topology: Topology, slots_per_gpu: int, capacity_factor: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the tokens that overflow in every layout, float64 [W, L], and how many experts prove it, int64 [W, L]."""
    demand.require_not_empty()
    check_slots_per_gpu(experts=demand.experts, gpus=topology.gpus, slots_per_gpu=slots_per_gpu)
    heaviest_WLE = -np.sort(-demand.tokens_WLE.astype(np.float64), axis=2)
    tokens_WLE = np.cumsum(heaviest_WLE, axis=2)
    cap_WL = capacity_factor * tokens_WLE[:, :, -1] / topology.gpus
    redundant = _redundant(demand, topology, slots_per_gpu)
    hosts_E = np.minimum(topology.gpus, np.arange(1, demand.experts + 1) + redundant)
    above_WLE = tokens_WLE - cap_WL[:, :, None] * hosts_E
    return np.maximum(above_WLE.max(axis=2), 0.0), above_WLE.argmax(axis=2) + 1


def _redundant(demand: Demand, topology: Topology, slots_per_gpu: int) -> int:
    return slots_per_gpu * topology.gpus - demand.experts


def _share_W(tokens_WL: npt.NDArray[np.float64], demand: Demand) -> npt.NDArray[np.float64]:
    whole_W = demand.tokens_WLE.sum(axis=(1, 2), dtype=np.float64)
    share_W: npt.NDArray[np.float64] = np.divide(
        tokens_WL.sum(axis=1), whole_W, out=np.zeros_like(whole_W), where=whole_W > 0
    )
    return share_W
