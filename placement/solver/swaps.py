"""Swaps of two experts between two GPUs: all of them evaluated at once, for many pairs and layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.problem import LocalScope
from placement.solver.goal import Goal, raise_to_power
from placement.solver.instance import Bools, Floats, Ints
from placement.solver.placing import Placing, SwapList


@dataclass(frozen=True, eq=False)
class _Leaving:
    """What happens when an expert leaves one GPU of a pair for the other, for every slot [R, Q, P].

    ``taken`` and ``brought`` are the loads that disappear there and appear here [W, R, Q, P]; ``cost`` is the
    change of the objective that does not depend on the other expert: local share, and the load of third GPUs.
    """

    taken_WRQP: Floats
    brought_WRQP: Floats
    cost_RQP: Floats | None
    barred_RQP: Bools


def best_swaps(
    placing: Placing, goal: Goal, rows: Ints, gpu_a_RQ: Ints, gpu_b_RQ: Ints
) -> tuple[SwapList, Floats, Ints]:
    """Find the best swap of every GPU pair of some layers.

    Parameters
    ----------
    rows
        Layers to look at, [R].
    gpu_a_RQ, gpu_b_RQ
        Pairs of different GPUs per layer, [R, Q].

    Returns
    -------
    swaps : SwapList
        One swap for every pair that has an improving one.
    change : ndarray
        What each is expected to change the objective by, < 0: at most this much for even instances with
        disjoint pairs, an estimate where third GPUs are affected.
    row : ndarray
        Index into ``rows`` of each swap.
    """
    loads_WRG = placing.loads_WLG[:, rows]
    slope_WR = goal.slope(loads_WRG, rows)
    layer_R1 = rows[:, None]
    load_a_WRQ = placing.loads_WLG[:, layer_R1, gpu_a_RQ]
    load_b_WRQ = placing.loads_WLG[:, layer_R1, gpu_b_RQ]
    from_a = _leaving(placing, goal, rows, slope_WR, gpu_a_RQ, gpu_b_RQ)
    from_b = _leaving(placing, goal, rows, slope_WR, gpu_b_RQ, gpu_a_RQ)

    # Step 1: the powers of both GPUs' new loads, for slot i of a and slot j of b. [R, Q, P, P]
    change_RQPP = np.zeros((*gpu_a_RQ.shape, *2 * (placing.slots_LGP.shape[2],)))
    for window, slope_R in enumerate(slope_WR):
        left_a_RQP = load_a_WRQ[window][..., None] - from_a.taken_WRQP[window]
        power = left_a_RQP[..., :, None] + from_b.brought_WRQP[window][..., None, :]
        _square_in_place(power, goal.doublings)
        power *= slope_R[:, None, None, None]
        change_RQPP += power
        more_b_RQP = load_b_WRQ[window][..., None] + from_a.brought_WRQP[window]
        np.subtract(more_b_RQP[..., :, None], from_b.taken_WRQP[window][..., None, :], out=power)
        _square_in_place(power, goal.doublings)
        power *= slope_R[:, None, None, None]
        change_RQPP += power
    now_RQ = (
        slope_WR[:, :, None] * (raise_to_power(load_a_WRQ, goal.doublings) + raise_to_power(load_b_WRQ, goal.doublings))
    ).sum(axis=0)

    # Step 2: costs of one expert alone; swaps that would put an expert twice on a GPU never win.
    for side, axes in ((from_a, (..., slice(None), None)), (from_b, (..., None, slice(None)))):
        alone_RQP = np.where(side.barred_RQP, np.inf, 0.0 if side.cost_RQP is None else side.cost_RQP)
        change_RQPP += alone_RQP[axes]

    # Step 3: the best of each pair.
    flat = change_RQPP.reshape(*gpu_a_RQ.shape, -1)
    best_RQ = flat.argmin(axis=2)
    change_RQ = np.take_along_axis(flat, best_RQ[..., None], axis=2)[..., 0] - now_RQ
    row, pair = np.nonzero(change_RQ < -goal.least_gain(rows)[:, None])
    slot_a, slot_b = np.divmod(best_RQ[row, pair], placing.slots_LGP.shape[2])
    swaps = SwapList(rows[row], gpu_a_RQ[row, pair], slot_a, gpu_b_RQ[row, pair], slot_b)
    return swaps, change_RQ[row, pair], row


def _square_in_place(values: Floats, times: int) -> None:
    for _ in range(times):
        np.multiply(values, values, out=values)


def _leaving(placing: Placing, goal: Goal, rows: Ints, slope_WR: Floats, from_RQ: Ints, to_RQ: Ints) -> _Leaving:
    layer_R11 = rows[:, None, None]
    expert_RQP = placing.slots_LGP[rows[:, None], from_RQ]
    barred_RQP = placing.hosts_LEG[layer_R11, expert_RQP, to_RQ[..., None]]
    cost_RQP = None
    if goal.local_weight:
        cost_RQP = _local_cost(placing, goal.local_weight, layer_R11, expert_RQP, from_RQ[..., None], to_RQ[..., None])
    if placing.instance.even:
        item_WRQP = placing.item_WLE[:, layer_R11, expert_RQP]
        return _Leaving(item_WRQP, item_WRQP, cost_RQP, barred_RQP)
    taken_WRQP = placing.shares_WLEG[:, layer_R11, expert_RQP, from_RQ[..., None]]
    brought_WRQP = placing.instance.total_WLE[:, layer_R11, expert_RQP]
    several = np.nonzero((placing.replicas_LE[layer_R11, expert_RQP] > 1) & ~barred_RQP)
    if several[0].size:
        row, pair, _ = several
        brought_WK, third_K = _with_third_gpus(
            placing, goal, slope_WR[:, row], rows[row], expert_RQP[several], from_RQ[row, pair], to_RQ[row, pair]
        )
        brought_WRQP[:, several[0], several[1], several[2]] = brought_WK
        cost_RQP = np.zeros(expert_RQP.shape) if cost_RQP is None else cost_RQP
        cost_RQP[several] += third_K
    return _Leaving(taken_WRQP, brought_WRQP, cost_RQP, barred_RQP)


def _with_third_gpus(
    placing: Placing, goal: Goal, slope_WK: Floats, layer_K: Ints, expert_K: Ints, from_K: Ints, to_K: Ints
) -> tuple[Floats, Floats]:
    """Return the load a replica brings to its new GPU, and the cost of what changes on third GPUs."""
    cell_K = np.arange(len(layer_K))
    hosts_KG = placing.hosts_LEG[layer_K, expert_K]
    hosts_KG[cell_K, from_K] = False
    hosts_KG[cell_K, to_K] = True
    moved_WKG = placing.instance.loads_of(layer_K, expert_K, hosts_KG)
    brought_WK = moved_WKG[:, cell_K, to_K]
    # The powers of the loads as they are: once per layer, without the pair's own.
    power_WLG = raise_to_power(placing.loads_WLG, goal.doublings)
    before_WK = power_WLG.sum(axis=2)[:, layer_K] - power_WLG[:, layer_K, from_K] - power_WLG[:, layer_K, to_K]
    # The powers as they would be, in place: this is where the search on several nodes spends its time.
    after_WKG = moved_WKG
    after_WKG -= placing.shares_WLEG[:, layer_K, expert_K]
    after_WKG += placing.loads_WLG[:, layer_K]
    _square_in_place(after_WKG, goal.doublings)
    after_WKG[:, cell_K, from_K] = 0.0
    after_WKG[:, cell_K, to_K] = 0.0
    third_K: Floats = (slope_WK * (after_WKG.sum(axis=2) - before_WK)).sum(axis=0)
    return brought_WK, third_K


def _local_cost(
    placing: Placing, local_weight: float, layer: Ints, expert: Ints, from_gpu: Ints, to_gpu: Ints
) -> Floats | None:
    """Return what is lost when an expert moves; None when a move never changes anything."""
    lost = _lost_share(placing, layer, expert, from_gpu, to_gpu)
    staying_LEG = placing.instance.staying_LEG
    if staying_LEG is not None:
        stays = staying_LEG[layer, expert, from_gpu] - staying_LEG[layer, expert, to_gpu]
        lost = stays if lost is None else lost + stays
    return None if lost is None else local_weight * lost


def _lost_share(placing: Placing, layer: Ints, expert: Ints, from_gpu: Ints, to_gpu: Ints) -> Floats | None:
    """Return what is lost in local share when an expert moves; None when a move never changes it."""
    instance = placing.instance
    sites = instance.value_LEM.shape[2]
    if instance.scope is LocalScope.GPU:
        if sites == 1:
            return None
        lost: Floats = instance.value_LEM[layer, expert, from_gpu] - instance.value_LEM[layer, expert, to_gpu]
        return lost
    from_node, to_node = np.broadcast_arrays(from_gpu // instance.gpus_per_node, to_gpu // instance.gpus_per_node)
    leaves = placing.node_hosts(layer, expert, from_node) == 1
    enters = placing.node_hosts(layer, expert, to_node) == 0
    site_from, site_to = (from_node, to_node) if sites > 1 else (np.zeros_like(from_node),) * 2
    lost = leaves * instance.value_LEM[layer, expert, site_from] - enters * instance.value_LEM[layer, expert, site_to]
    return np.where(from_node == to_node, 0.0, lost)
