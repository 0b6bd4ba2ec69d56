"""Tokens above a GPU's cap, and how many of them other replicas could take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.graph.python import max_flow

USUAL_CAPACITY_FACTORS = (1.0, 1.25, 1.5, 2.0)
"""Capacity factors that every layout is judged at."""

FLOW_UNITS = 2**40
"""The overflow of one layer is cut into this many whole units, because the flow is solved in integers."""

ROUNDING = 1e-9
"""Loads are sums of floating-point shares: overflow below this share of the mean load is rounding."""


@dataclass(frozen=True)
class Overflow:
    """Tokens above the caps, and the part of them that other replicas can take, both in tokens."""

    tokens: float
    rerouted: float


def overflow_of_layer(
    served_EG: npt.NDArray[np.float64], hosts_EG: npt.NDArray[np.bool_], *, capacity_factor: float
) -> Overflow:
    """Measure the overflow of one layer in one window.

    A GPU's cap is ``capacity_factor`` x the mean load. What is above it may move, in one hop, to other GPUs that hold
    the same expert and are below their own cap.

    Parameters
    ----------
    served_EG
        Tokens of expert e that GPU g computes, float64 [E, G].
    hosts_EG
        Whether GPU g holds expert e, bool [E, G].
    capacity_factor
        > 0.
    """
    load_G = served_EG.sum(axis=0)
    cap = capacity_factor * load_G.mean()
    overflow_G = np.maximum(load_G - cap, 0.0)
    overflow_G[overflow_G <= ROUNDING * load_G.mean()] = 0.0
    if not overflow_G.any():
        return Overflow(0.0, 0.0)
    tokens = float(overflow_G.sum())
    spare_G = np.maximum(cap - load_G, 0.0)
    return Overflow(tokens, tokens * _rerouted_share(served_EG, hosts_EG, overflow_G, spare_G))


def _rerouted_share(
    served_EG: npt.NDArray[np.float64],
    hosts_EG: npt.NDArray[np.bool_],
    overflow_G: npt.NDArray[np.float64],
    spare_G: npt.NDArray[np.float64],
) -> float:
    """Return the largest share of the overflow that fits elsewhere, by a maximum flow.

    The flow runs source -> overflowing GPU (its overflow) -> expert (its tokens there) -> host with room -> sink (its
    room). A GPU never takes its own overflow back, since one that overflows has no room.
    """
    experts, gpus = served_EG.shape
    from_gpu_G = np.arange(gpus)
    expert_E = gpus + np.arange(experts)
    to_gpu_G = gpus + experts + np.arange(gpus)
    source, sink = 2 * gpus + experts, 2 * gpus + experts + 1
    total = overflow_G.sum()

    def units(tokens: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        whole: npt.NDArray[np.int64] = np.floor(np.minimum(tokens / total, 1.0) * FLOW_UNITS).astype(np.int64)
        return whole

    over = np.flatnonzero(overflow_G)
    moving_expert, moving_gpu = np.nonzero((served_EG > 0) & (overflow_G > 0))
    host_expert, host_gpu = np.nonzero(hosts_EG & (spare_G > 0))
    room = np.flatnonzero(spare_G)

    flow = max_flow.SimpleMaxFlow()
    flow.add_arcs_with_capacity(np.full(over.size, source), from_gpu_G[over], units(overflow_G[over]))
    flow.add_arcs_with_capacity(
        from_gpu_G[moving_gpu], expert_E[moving_expert], units(served_EG[moving_expert, moving_gpu])
    )
    flow.add_arcs_with_capacity(
        expert_E[host_expert], to_gpu_G[host_gpu], np.full(host_expert.size, FLOW_UNITS, dtype=np.int64)
    )
    flow.add_arcs_with_capacity(to_gpu_G[room], np.full(room.size, sink), units(spare_G[room]))
    status = flow.solve(source, sink)
    if status != flow.OPTIMAL:
        raise RuntimeError(f"the maximum flow of the overflow ended with status {status}.")
    return float(flow.optimal_flow()) / float(units(overflow_G[over]).sum())
