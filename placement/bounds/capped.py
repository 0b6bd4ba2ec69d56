"""Bounds that see dispatch, windows and the cap on imbalance together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.host_set_dual import Columns, DualPoint, Floats, descend
from placement.bounds.host_sets import HostSets, host_sets
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Problem

ROUNDING = 1e-9
"""Bounds are weakened by this part of them: far above what float64 loses in the sums of the dual."""

FEWEST_ROUNDS, MOST_ROUNDS = 100, 600
PATIENCE = 8
"""How many times the effort the fewest rounds may take; with fewer rounds the prices say nothing yet."""

CELLS_PER_SECOND = 1e8
"""Columns x (windows + 3) that one core weighs in a second, roughly: turns effort into a number of rounds, so that
the result depends on effort alone and not on the clock."""

LOCAL_RELAXATION = (
    "linear relaxation over host sets under dispatch {dispatch}, imbalance <= {cap:.6g} in every window "
    "(Lagrangian dual, no expert twice on a GPU)"
)
IMBALANCE_RELAXATION = (
    "linear relaxation over host sets under dispatch {dispatch}, one layout for all windows "
    "(Lagrangian dual, no expert twice on a GPU)"
)


@dataclass(frozen=True, eq=False)
class HostSetBound:
    """The optimum of a relaxation over host sets, up to how far its prices were driven.

    Attributes
    ----------
    value : float
        Upper bound on the local share, or lower bound on the worst window's imbalance.
    value_L : ndarray
        float64 [L] over all decoder layers, the parts they contribute at the prices found. For a local share
        ``value`` is their sum plus ``sum(window_price_W) * cap``, for imbalance their sum.
    window_price_W : ndarray
        float64 [W], what a unit of imbalance is worth in each window.
    hosting_LEG : ndarray
        float64 [L, E, G] in 0..1, a fractional layout near the optimum: a start for rounding, nothing proven.
    relaxation : str
    """

    value: float
    value_L: npt.NDArray[np.float64]
    window_price_W: npt.NDArray[np.float64]
    hosting_LEG: npt.NDArray[np.float64]
    relaxation: str


def capped_local_bound(
    problem: Problem, *, max_imbalance: float | None = None, effort_s: float = 1.0
) -> HostSetBound | None:
    """Bound the local share (of ``problem.local_scope``) of all layouts that keep the cap in every window.

    Proof: :mod:`placement.bounds.host_set_dual`. It holds for layouts without an expert twice on a GPU.

    With uniform sources on one node the relaxation sees nothing of the cap: spread every column over all sets of
    its size, and all GPUs carry the mean load, whatever the number of replicas. It then equals the closed form of
    :func:`placement.bounds.local_gpu_bound` and is not computed.

    Parameters
    ----------
    problem
    max_imbalance
        The cap; the problem's own by default.
    effort_s
        About how long to look for prices on one core; the result is a function of it, not of the clock.

    Returns
    -------
    HostSetBound or None
        None where the relaxation does not exist (``even``: nothing is local; ``nearest-static``: loads are no
        function of host sets), says nothing, would need more than 2^8 host sets, or far more effort than given.
    """
    sets = _sets_worth_pricing(problem)
    rounds = 0 if sets is None else _rounds(problem, sets, effort_s)
    if sets is None or not rounds:
        return None
    cap = problem.max_imbalance if max_imbalance is None else max_imbalance
    columns = _columns(problem, sets, with_values=True)
    point = descend(columns, cap=cap, rounds=rounds)
    share = min(1.0, max(0.0, point.total(cap) * (1 + ROUNDING)))
    return _bound(problem, point, share, point.dual_L, LOCAL_RELAXATION.format(dispatch=problem.dispatch, cap=cap))


def host_set_imbalance_bound(problem: Problem, *, effort_s: float = 1.0) -> HostSetBound | None:
    """Bound the worst window's imbalance from below, one layout for all windows, dispatch exact.

    Worth something where sources are measured and slots are many: a GPU that holds most experts computes what its
    own users send. Else it is 1, see :func:`capped_local_bound` for why, and for parameters and None.
    """
    sets = _sets_worth_pricing(problem)
    rounds = 0 if sets is None else _rounds(problem, sets, effort_s)
    if sets is None or not rounds:
        return None
    columns = _columns(problem, sets, with_values=False)
    point = descend(columns, cap=None, rounds=rounds)
    imbalance = max(1.0, -point.total(0.0) * (1 - ROUNDING))
    return _bound(problem, point, imbalance, -point.dual_L, IMBALANCE_RELAXATION.format(dispatch=problem.dispatch))


def _sets_worth_pricing(problem: Problem) -> HostSets | None:
    symmetric = problem.demand.sources == "uniform" and problem.topology.nodes == 1
    if symmetric or problem.dispatch is Dispatch.EVEN:
        return None
    return host_sets(problem.topology, problem.dispatch)


def _columns(problem: Problem, sets: HostSets, *, with_values: bool) -> Columns:
    demand, gpus = problem.demand, problem.topology.gpus
    layers = list(demand.moe_layers)
    busy = np.flatnonzero(demand.tokens_WLE.any(axis=(1, 2)))
    tokens_WLE = demand.tokens_WLE[busy][:, layers]
    mean_WL = tokens_WLE.sum(axis=2) / gpus
    tokens_WLES = np.moveaxis(demand.tokens_WLSE[busy][:, layers], 2, 3)
    if demand.sources == "uniform":
        tokens_WLES = np.repeat(tokens_WLES / gpus, gpus, axis=3)
    scale_WL11 = np.where(mean_WL > 0, mean_WL, 1.0)[:, :, None, None]
    value_LEH = np.zeros((len(layers), demand.experts, len(sets.hosts_HG)))
    if with_values:
        value_LEH = _values(demand, problem.local_scope, sets, layers)
    return Columns(
        sets,
        value_LEH,
        np.ascontiguousarray(tokens_WLES / scale_WL11),
        mean_WL / mean_WL.sum(axis=1, keepdims=True),
        problem.slots_per_gpu,
    )


def _values(demand: Demand, scope: LocalScope, sets: HostSets, layers: list[int]) -> Floats:
    """Return the local share of every column: what its sites send, over all demand; float64 [L, E, H]."""
    sites_HM = sets.hosts_HG if scope is LocalScope.GPU else sets.nodes_HN
    sites = sites_HM.shape[1]
    tokens_LSE = demand.tokens_WLSE[:, layers].sum(axis=0)
    if demand.sources == "uniform":
        tokens_LME = np.repeat(tokens_LSE / sites, sites, axis=1)
    else:
        tokens_LME = tokens_LSE.reshape(len(layers), sites, -1, demand.experts).sum(axis=2)
    value_LEH: Floats = np.moveaxis(tokens_LME, 1, 2) / demand.total_tokens @ sites_HM.T
    return value_LEH


def _rounds(problem: Problem, sets: HostSets, effort_s: float) -> int:
    """Return how many rounds the effort allows; 0 where even the fewest would take far longer."""
    demand = problem.demand
    cells = len(demand.moe_layers) * demand.experts * len(sets.hosts_HG) * (demand.windows + 3)
    rounds = effort_s * CELLS_PER_SECOND / cells
    return 0 if rounds * PATIENCE < FEWEST_ROUNDS else int(np.clip(rounds, FEWEST_ROUNDS, MOST_ROUNDS))


def _bound(problem: Problem, point: DualPoint, value: float, value_L: Floats, relaxation: str) -> HostSetBound:
    demand, layers = problem.demand, list(problem.demand.moe_layers)
    all_L, price_W = np.zeros(demand.layers), np.zeros(demand.windows)
    all_L[layers] = value_L
    price_W[demand.tokens_WLE.any(axis=(1, 2))] = point.window_price_W
    hosting_LEG = np.zeros((demand.layers, demand.experts, problem.topology.gpus))
    hosting_LEG[layers] = point.hosting_LEG
    return HostSetBound(value, all_L, price_W, hosting_LEG, relaxation)
