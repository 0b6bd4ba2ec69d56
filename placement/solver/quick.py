"""A balanced layout in about a second, from numpy alone: replica counts, a packing, and the local search on it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.layout import Layout
from placement.problem import Problem
from placement.solver.batches import Searcher
from placement.solver.deadline import Deadline
from placement.solver.instance import Instance, Ints, instance_of
from placement.solver.local_search import TIES_ONLY, Effort
from placement.solver.placing import Slots
from placement.solver.plans import plans_of
from placement.solver.starts import hosts_of_slots, pack, replicas_by_load

QUICK = Effort(rounds=1)
"""One search at equal prices of the windows."""

WORTH_MOVING = 0.01
"""Relative gain in peak load below which a layer stays as it runs."""


def quick_balance(problem: Problem, *, time_limit_s: float | None = None, seed: int = 0) -> Layout:
    """Return a layout of small peaks, summed over windows; the same for the same input when no time limit strikes.

    Parameters
    ----------
    problem
        Its ``current`` layout is required: layers without demand, and layers that would gain less than
        :data:`WORTH_MOVING`, keep their row. The objective and its limits are not looked at.
    time_limit_s
        The search ends where it is then.

    Raises
    ------
    ValueError
        When the problem has no current layout.
    """
    if problem.current is None:
        raise ValueError("quick_balance needs the layout that runs now.")
    instance = instance_of(problem)
    layers = list(problem.demand.moe_layers)
    running_LGP = _by_gpu(problem.current, layers)
    replicas_LE = replicas_by_load(instance.total_WLE, gpus=instance.gpus, slots=instance.slots)
    searcher = Searcher(instance, map, Deadline.after(time_limit_s), seed)
    prices_W = np.full(instance.windows, 1 / instance.windows)
    found = searcher.improve(pack(instance, replicas_LE), price_W=prices_W, local_weight=TIES_ONLY, effort=QUICK)
    peaks_L = _peaks(instance, found.slots_LGP)
    worth_L = peaks_L < (1 - WORTH_MOVING) * _peaks(instance, running_LGP)
    worth_L |= _doubled(running_LGP, experts=instance.experts)
    near_LGP = nearest_slots(running_LGP, found.slots_LGP, experts=instance.experts, nodes=instance.nodes)
    slots_LP = problem.current.slot_to_expert_LP.copy()
    chosen_LGP = np.where(worth_L[:, None, None], near_LGP, running_LGP)
    slots_LP[layers] = chosen_LGP.reshape(len(layers), -1)
    return Layout(slots_LP, gpus=problem.current.gpus, experts=problem.current.experts)


def _by_gpu(layout: Layout, layers: list[int]) -> Slots:
    rows_LP = layout.slot_to_expert_LP[layers]
    return rows_LP.reshape(len(layers), layout.gpus, layout.slots_per_gpu).astype(np.int64)


def _peaks(instance: Instance, slots_LGP: Slots) -> npt.NDArray[np.float64]:
    peaks_L: npt.NDArray[np.float64] = plans_of(instance, slots_LGP).peak_WL.sum(axis=0)
    return peaks_L


def _doubled(slots_LGP: Slots, *, experts: int) -> npt.NDArray[np.bool_]:
    """Mark layers in which a GPU holds an expert twice: such layouts are for the search to leave, not to keep."""
    held_L = hosts_of_slots(slots_LGP, experts=experts).sum(axis=(1, 2))
    doubled_L: npt.NDArray[np.bool_] = held_L < slots_LGP.shape[1] * slots_LGP.shape[2]
    return doubled_L


def nearest_slots(running_LGP: Slots, wanted_LGP: Slots, *, experts: int, nodes: int) -> Slots:
    """Write a layout so that few slots change: GPUs are renamed where that changes no load, and experts stay put.

    On one node a GPU's name means nothing. On several, dispatch takes a node's first replica in slot order, so GPUs
    keep their names. GPUs are matched greedily, most experts in common first; :func:`placement.relabel` does it
    exactly, with OR-Tools.
    """
    if nodes == 1:
        hosts_LEG = hosts_of_slots(wanted_LGP, experts=experts)
        before_LEG = hosts_of_slots(running_LGP, experts=experts)
        common_LGG = np.einsum("leg,leh->lgh", before_LEG.astype(np.float64), hosts_LEG.astype(np.float64))
        layer_L1 = np.arange(len(wanted_LGP))[:, None]
        wanted_LGP = wanted_LGP[layer_L1, _greedy_matching(common_LGG)]
    return _kept_in_place(running_LGP, wanted_LGP)


def _greedy_matching(common_LGG: npt.NDArray[np.float64]) -> Ints:
    """Return for every GPU that runs the wanted one that becomes it; int64 [L, G]."""
    layers, gpus, _ = common_LGG.shape
    open_LGG = common_LGG.copy()
    becomes_LG = np.full((layers, gpus), -1, dtype=np.int64)
    row_L = np.arange(layers)
    for _ in range(gpus):
        running_L, wanted_L = np.divmod(open_LGG.reshape(layers, -1).argmax(axis=1), gpus)
        becomes_LG[row_L, running_L] = wanted_L
        open_LGG[row_L, running_L, :] = -1.0
        open_LGG[row_L, :, wanted_L] = -1.0
    return becomes_LG


def _kept_in_place(running_LGP: Slots, wanted_LGP: Slots) -> Slots:
    """Sort every GPU's experts so that those it holds already keep their slot."""
    placed_LGP = np.full_like(wanted_LGP, -1)
    for layer, gpu in np.ndindex(wanted_LGP.shape[:2]):
        running_P, wanted_P = running_LGP[layer, gpu], wanted_LGP[layer, gpu]
        _, first_P = np.unique(running_P, return_index=True)
        stays_P = np.zeros(len(running_P), dtype=np.bool_)
        stays_P[first_P] = np.isin(running_P[first_P], wanted_P)
        row_P = placed_LGP[layer, gpu]
        row_P[stays_P] = running_P[stays_P]
        row_P[~stays_P] = wanted_P[~np.isin(wanted_P, running_P[stays_P])]
    return placed_LGP
