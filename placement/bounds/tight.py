"""The tightest proven bounds of a problem, whichever relaxations apply."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy.typing as npt

from placement.bounds.capped import HostSetBound, capped_local_bound, host_set_imbalance_bound
from placement.bounds.gpu_contents import GpuContentsBound, gpu_contents_bound
from placement.bounds.imbalance import imbalance_bound
from placement.bounds.locality import local_gpu_bound, local_node_bound
from placement.bounds.small import SmallLayersBound, small_imbalance_bound, small_local_bound
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Problem
from placement.solution import Bound


@dataclass(frozen=True, eq=False)
class TightBounds:
    """Bounds, and where they come from.

    Attributes
    ----------
    bound : Bound
        ``local_gpu`` and ``local_node`` are None under ``even`` dispatch, where nothing is local. The share of
        ``problem.local_scope`` holds for layouts under the cap, the other one for all layouts.
    local : HostSetBound or SmallLayersBound or None
        The bound on the local share that sees the cap, with its layers, prices and layouts; None where there is none,
        also when the bound without the cap is tighter and stands in ``bound``.
    imbalance : HostSetBound or SmallLayersBound or GpuContentsBound or None
        The same for imbalance beside counting.
    """

    bound: Bound
    local: HostSetBound | SmallLayersBound | None
    imbalance: HostSetBound | SmallLayersBound | GpuContentsBound | None


def tight_bounds(
    problem: Problem,
    *,
    max_imbalance: float | None = None,
    window_price_W: npt.ArrayLike | None = None,
    effort_s: float = 1.0,
) -> TightBounds:
    """Bound local share and imbalance by everything that applies, and keep the tightest.

    | sources, nodes | local share | imbalance |
    |---|---|---|
    | any | flow or closed form, no cap | counting big shares |
    | measured, or several nodes, G <= 8 | host sets, priced | host sets, priced |
    | uniform on one node, few experts | layers searched | layers searched |
    | the same, too many layouts to search | | contents of one GPU |

    Parameters
    ----------
    problem
    max_imbalance
        Cap under which the local share is bounded; the problem's own by default. Where that is out of reach, give
        the one that was used.
    window_price_W
        What a unit of imbalance is worth in each window, as the duals of a solver's master say: where to start
        looking for prices. Sound whatever they are.
    effort_s
        About how many seconds of one core to spend. Bounds are a function of it, not of the clock.
    """
    local = bound_local_under_cap(
        problem, max_imbalance=max_imbalance, window_price_W=window_price_W, effort_s=effort_s / 2
    )
    imbalance = bound_imbalance(problem, window_price_W=window_price_W, effort_s=effort_s / 2)
    bound = _without_prices(problem)
    scope = "local_node" if problem.local_scope is LocalScope.NODE else "local_gpu"
    share = bound.local_node if problem.local_scope is LocalScope.NODE else bound.local_gpu
    if local is None or share is None or local.value >= share:
        local = None
    elif problem.local_scope is LocalScope.NODE:
        bound = replace(bound, local_node=local.value, relaxation={**bound.relaxation, scope: local.relaxation})
    else:
        bound = replace(bound, local_gpu=local.value, relaxation={**bound.relaxation, scope: local.relaxation})
    if imbalance is None or imbalance.value <= (bound.imbalance or 1.0):
        return TightBounds(bound, local, None)
    relaxation = {**bound.relaxation, "imbalance": imbalance.relaxation}
    return TightBounds(replace(bound, imbalance=imbalance.value, relaxation=relaxation), local, imbalance)


def _without_prices(problem: Problem) -> Bound:
    """Return what counting and flow prove."""
    demand, topology, slots = problem.demand, problem.topology, problem.slots_per_gpu
    counted = imbalance_bound(demand, topology, slots, problem.dispatch)
    relaxation = {"imbalance": counted.relaxation}
    if problem.dispatch is Dispatch.EVEN:
        return Bound(None, None, counted.imbalance, relaxation)
    gpu, node = local_gpu_bound(demand, topology, slots), local_node_bound(demand, topology, slots)
    relaxation |= {"local_gpu": gpu.relaxation, "local_node": node.relaxation}
    return Bound(gpu.share, node.share, counted.imbalance, relaxation)


def bound_local_under_cap(
    problem: Problem,
    *,
    max_imbalance: float | None = None,
    window_price_W: npt.ArrayLike | None = None,
    effort_s: float,
) -> HostSetBound | SmallLayersBound | None:
    """Return the bound that sees the cap; host sets and searched layers never apply to the same problem."""
    priced = capped_local_bound(problem, max_imbalance=max_imbalance, effort_s=effort_s)
    if priced is not None:
        return priced
    return small_local_bound(problem, max_imbalance=max_imbalance, window_price_W=window_price_W, effort_s=effort_s)


def bound_imbalance(
    problem: Problem, *, window_price_W: npt.ArrayLike | None = None, effort_s: float
) -> HostSetBound | SmallLayersBound | GpuContentsBound | None:
    """Return the strongest bound on the worst window that sees all windows and is within the effort.

    Searching a layer begins with the contents of one GPU, so these are asked alone only where no search fits.
    """
    priced = host_set_imbalance_bound(problem, effort_s=effort_s)
    if priced is not None:
        return priced
    searched = small_imbalance_bound(problem, window_price_W=window_price_W, effort_s=effort_s)
    if searched is not None:
        return searched
    return gpu_contents_bound(problem, window_price_W=window_price_W, effort_s=effort_s)
