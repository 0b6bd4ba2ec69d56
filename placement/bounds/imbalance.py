"""Lower bounds on the worst window's imbalance, from counting shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.counting import SHARE_RULES, ShareRule, no_layout_stays_below
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.slots import check_slots_per_gpu
from placement.topology import Topology

HALVINGS = 40
"""Steps of bisection: the bound is within 2^-40 of the range it started from."""


@dataclass(frozen=True)
class ImbalanceBound:
    """A lower bound on the worst window's imbalance.

    Attributes
    ----------
    imbalance : float
        >= 1; every layout has a window whose imbalance is at least this.
    max_load_WL : ndarray
        float64 [W, L], for every window and layer a load in tokens that the busiest GPU reaches in every
        layout (0 where there is no demand).
    imbalance_W : ndarray
        float64 [W], the bound of every window; 1 where there is no demand.
    relaxation : str
        The problem whose optimum ``max_load_WL`` is.
    """

    imbalance: float
    max_load_WL: npt.NDArray[np.float64]
    imbalance_W: npt.NDArray[np.float64]
    relaxation: str


def imbalance_bound(demand: Demand, topology: Topology, slots_per_gpu: int, dispatch: Dispatch) -> ImbalanceBound:
    """Bound the worst window's imbalance from below.

    Relaxation: every window and layer may have a layout of its own, and of a layout only the number of slots
    per expert and the number of shares per GPU are kept (:mod:`placement.bounds.counting`).

    Proof. Per window and layer the busiest GPU has at least the mean load, and more than T whenever counting
    shows that no layout keeps all GPUs at or below T. A window's imbalance is the sum over layers of the
    largest loads over the sum of the means, so bounding each layer bounds the window; the worst window is at
    least as bad as every one of them.

    The rule for shares follows from dispatch, sources and nodes; see :func:`share_rule`.

    Raises
    ------
    SlotsBelowExperts, RedundancyTooHigh, EmptyProfile
    """
    demand.require_not_empty()
    check_slots_per_gpu(experts=demand.experts, gpus=topology.gpus, slots_per_gpu=slots_per_gpu)
    rule = share_rule(demand, topology, dispatch)
    tokens_WLE = demand.tokens_WLE.astype(np.float64)
    tokens_XE = tokens_WLE.reshape(-1, demand.experts)
    mean_X = tokens_XE.sum(axis=1) / topology.gpus
    max_load_X = _largest_refuted_load(
        tokens_XE, mean_X, gpus=topology.gpus, slots=topology.gpus * slots_per_gpu, rule=rule
    )
    shape = (demand.windows, demand.layers)
    mean_W = mean_X.reshape(shape).sum(axis=1)
    excess_W = (max_load_X - mean_X).reshape(shape).sum(axis=1)
    imbalance_W = 1.0 + np.divide(excess_W, mean_W, out=np.zeros_like(mean_W), where=mean_W > 0)
    return ImbalanceBound(float(imbalance_W.max()), max_load_X.reshape(shape), imbalance_W, SHARE_RULES[rule])


def share_rule(demand: Demand, topology: Topology, dispatch: Dispatch) -> ShareRule:
    """Return what may be assumed about how an expert's load splits over the GPUs that host it.

    ``EQUAL``: an expert with m slots and w tokens gives each of its host GPUs at least w / m. True for

    - ``even`` dispatch, with any sources and nodes: each slot takes w / m;
    - ``nearest-dynamic`` with uniform sources on one node: a GPU with k of the m slots, which lie on n GPUs,
      takes w / G of its own tokens and k / m of the tokens from the G - n GPUs without the expert, together
      at least ``w / G * (1 + (G - n) / m) >= w / m``, because n <= m.

    ``ANY``: only that the shares add up to w. True for every dispatch that serves all tokens, and all that is
    left for ``nearest-static`` (a drawn table), for several nodes and for measured sources, where a replica
    may be chosen by nobody.
    """
    if dispatch is Dispatch.EVEN:
        return ShareRule.EQUAL
    if dispatch is Dispatch.NEAREST_DYNAMIC and demand.sources == "uniform" and topology.nodes == 1:
        return ShareRule.EQUAL
    return ShareRule.ANY


def _largest_refuted_load(
    tokens_XE: npt.NDArray[np.float64], mean_X: npt.NDArray[np.float64], *, gpus: int, slots: int, rule: ShareRule
) -> npt.NDArray[np.float64]:
    """Bisect for the largest load that no layout stays below; at least the mean. [X]

    Only refuted loads are ever taken as bounds, so the result is sound whether or not refutation is monotone.
    """
    refuted_X = mean_X.copy()
    open_I = np.flatnonzero(mean_X > 0)
    open_I = open_I[no_layout_stays_below(refuted_X[open_I], tokens_XE[open_I], gpus=gpus, slots=slots, rule=rule)]
    if not open_I.size:
        return refuted_X
    # One GPU never has more than everything.
    ceiling_I = tokens_XE[open_I].sum(axis=1)
    for _ in range(HALVINGS):
        middle_I = (refuted_X[open_I] + ceiling_I) / 2
        fails_I = no_layout_stays_below(middle_I, tokens_XE[open_I], gpus=gpus, slots=slots, rule=rule)
        refuted_X[open_I] = np.where(fails_I, middle_I, refuted_X[open_I])
        ceiling_I = np.where(fails_I, ceiling_I, middle_I)
    return refuted_X
