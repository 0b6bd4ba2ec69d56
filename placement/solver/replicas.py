"""Replica counts: a replica of one expert gives its slot to another expert that the GPU lacks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.problem import LocalScope
from placement.solver.deadline import Deadline
from placement.solver.goal import Goal, raise_to_power
from placement.solver.instance import Floats, Ints
from placement.solver.placing import Placing

LIKELY = 3
"""Experts per GPU that are looked at for leaving and for entering."""

EXACT = 16
"""Replacements per layer that are evaluated exactly."""


class _Candidates(NamedTuple):
    """Replacements, [K] each, ``row`` being an index into the layers looked at."""

    row: Ints
    gpu: Ints
    leaving: Ints
    entering: Ints


def improve_by_replacing(placing: Placing, goal: Goal, rows: Ints, *, steps: int, deadline: Deadline) -> Ints:
    """Make the best replacement of every layer again and again while it improves; return the layers changed."""
    if placing.instance.slots == placing.instance.experts:
        return rows[:0]
    changed_L = np.zeros(placing.instance.layers, dtype=np.bool_)
    for _ in range(steps):
        if deadline.passed or not rows.size:
            break
        rows = _replace_once(placing, goal, rows)
        changed_L[rows] = True
    return np.flatnonzero(changed_L)


def _replace_once(placing: Placing, goal: Goal, rows: Ints) -> Ints:
    """Make the best replacement of every layer that has an improving one; return those layers."""
    found = _likely(placing, goal, rows, below=0.0)
    change_K = _exact_change(placing, goal, rows, found)
    improves_K = change_K < -goal.least_gain(rows)[found.row]
    found = _Candidates(*(values[improves_K] for values in found))
    return _make(placing, rows, found, _of_rank(found.row, change_K[improves_K], np.zeros_like(rows)))


def replace_by_rank(placing: Placing, goal: Goal, rows: Ints, rank_R: Ints) -> Ints:
    """Make the replacement of the given rank (0 is best) in every layer, better or not; return layers changed."""
    found = _likely(placing, goal, rows, below=np.inf)
    change_K = _exact_change(placing, goal, rows, found)
    return _make(placing, rows, found, _of_rank(found.row, change_K, rank_R))


def _of_rank(row_K: Ints, change_K: Floats, rank_R: Ints) -> Ints:
    """Return the index of the candidate of the wanted rank in every row that has so many."""
    by_row = np.lexsort((change_K, row_K))
    sorted_row = row_K[by_row]
    first = np.searchsorted(sorted_row, np.arange(len(rank_R)))
    rank_K = np.arange(len(by_row)) - first[sorted_row]
    picked: Ints = by_row[rank_K == rank_R[sorted_row]]
    return picked


def _make(placing: Placing, rows: Ints, found: _Candidates, picked: Ints) -> Ints:
    layer, gpu = rows[found.row[picked]], found.gpu[picked]
    slot = (placing.slots_LGP[layer, gpu] == found.leaving[picked][:, None]).argmax(axis=1)
    if layer.size:
        placing.replace(layer, gpu, slot, found.entering[picked])
    return layer


def _likely(placing: Placing, goal: Goal, rows: Ints, *, below: float) -> _Candidates:
    """List the replacements that promise most to first order, among those that promise a change ``below``.

    The objective is convex in the loads, so a replacement that does not improve to first order never does.
    """
    removal_REG, addition_REG = _first_order(placing, goal, rows)
    count = min(LIKELY, placing.instance.experts)
    # Step 1: per GPU the likeliest to leave and to enter, and all their combinations. [R, G, count, count]
    leaving_RGI = np.argsort(removal_REG, axis=1, kind="stable")[:, :count].transpose(0, 2, 1)
    entering_RGI = np.argsort(addition_REG, axis=1, kind="stable")[:, :count].transpose(0, 2, 1)
    row_R11, gpu_1G1 = np.arange(len(rows))[:, None, None], np.arange(placing.instance.gpus)[None, :, None]
    removal_RGI = removal_REG[row_R11, leaving_RGI, gpu_1G1]
    addition_RGI = addition_REG[row_R11, entering_RGI, gpu_1G1]
    promise_RC = (removal_RGI[..., :, None] + addition_RGI[..., None, :]).reshape(len(rows), -1)
    # Step 2: the best of every layer.
    best_RK = np.argsort(promise_RC, axis=1, kind="stable")[:, :EXACT]
    row, position = np.nonzero(np.take_along_axis(promise_RC, best_RK, axis=1) < below)
    gpu, pair = np.divmod(best_RK[row, position], count * count)
    out, into = np.divmod(pair, count)
    return _Candidates(row, gpu, leaving_RGI[row, gpu, out], entering_RGI[row, gpu, into])


def _first_order(placing: Placing, goal: Goal, rows: Ints) -> tuple[Floats, Floats]:
    """Estimate the change of the objective when a replica leaves, and when one enters; float64 [R, E, G] each.

    An even split is assumed here, also where dispatch is not even: candidates are evaluated exactly later.
    Infinite where the expert is not there, is there only once, or is there already.
    """
    hosts_REG, replicas_RE = placing.hosts_LEG[rows], placing.replicas_LE[rows]
    loads_WRG = placing.loads_WLG[:, rows]
    power_WRG = raise_to_power(loads_WRG, goal.doublings)
    per_load_WRG = np.divide(power_WRG, loads_WRG, out=np.zeros_like(power_WRG), where=loads_WRG > 0)
    slope_WRG = goal.slope(loads_WRG, rows)[:, :, None] * 2**goal.doublings * per_load_WRG
    removal_REG, addition_REG = np.zeros(hosts_REG.shape), np.zeros(hosts_REG.shape)
    for window, slope_RG in enumerate(slope_WRG):
        total_RE = placing.instance.total_WLE[window, rows]
        others_RE = (hosts_REG * slope_RG[:, None, :]).sum(axis=2)
        less_RE = total_RE / replicas_RE / np.maximum(replicas_RE - 1, 1)
        removal_REG += less_RE[..., None] * (others_RE[..., None] - replicas_RE[..., None] * slope_RG[:, None, :])
        more_RE = total_RE / (replicas_RE + 1)
        addition_REG += more_RE[..., None] * (slope_RG[:, None, :] - (others_RE / replicas_RE)[..., None])
    lost_REG, gained_REG = _local_changes(placing, rows)
    removal_REG += goal.local_weight * lost_REG
    addition_REG -= goal.local_weight * gained_REG
    removal_REG[~hosts_REG | (replicas_RE == 1)[..., None]] = np.inf
    addition_REG[hosts_REG] = np.inf
    return removal_REG, addition_REG


def _local_changes(placing: Placing, rows: Ints) -> tuple[Floats, Floats]:
    """Return what is lost when the expert leaves the GPU and gained when it enters; [R, E, G] each."""
    lost_REG, gained_REG = _share_changes(placing, rows)
    instance = placing.instance
    if instance.staying_LEG is not None:
        stays_REG = instance.staying_LEG[rows]
        lost_REG, gained_REG = lost_REG + stays_REG, gained_REG + stays_REG
    if instance.variation_LE is not None:
        each_RE = instance.variation_LE[rows] / placing.replicas_LE[rows]
        # From n replicas to n - 1 or n + 1; the last one never leaves.
        fewer_RE = each_RE / np.maximum(placing.replicas_LE[rows] - 1, 1)
        more_RE = each_RE / (placing.replicas_LE[rows] + 1)
        lost_REG, gained_REG = lost_REG + fewer_RE[..., None], gained_REG + more_RE[..., None]
    return lost_REG, gained_REG


def _share_changes(placing: Placing, rows: Ints) -> tuple[Floats, Floats]:
    """Return the local share lost when the expert leaves the GPU and gained when it enters; [R, E, G] each."""
    instance = placing.instance
    value_REM = instance.value_LEM[rows]
    if instance.scope is LocalScope.GPU:
        value_REG = np.broadcast_to(value_REM, (*value_REM.shape[:2], instance.gpus))
        return value_REG, value_REG
    by_node = placing.hosts_LEG[rows].reshape(*value_REM.shape[:2], instance.nodes, instance.gpus_per_node)
    held_REN = by_node.sum(axis=3)
    lost_REN, gained_REN = value_REM * (held_REN == 1), value_REM * (held_REN == 0)
    return np.repeat(lost_REN, instance.gpus_per_node, axis=2), np.repeat(gained_REN, instance.gpus_per_node, axis=2)


def _exact_change(placing: Placing, goal: Goal, rows: Ints, found: _Candidates) -> Floats:
    """Return the change of the linearised objective, with the loads of all GPUs worked out; float64 [K]."""
    instance, layer_K = placing.instance, rows[found.row]
    cell_K = np.arange(len(layer_K))
    before_WKG = placing.loads_WLG[:, layer_K]
    after_WKG = before_WKG.copy()
    for expert_K, present in ((found.leaving, False), (found.entering, True)):
        hosts_KG = placing.hosts_LEG[layer_K, expert_K]
        after_WKG -= instance.loads_of(layer_K, expert_K, hosts_KG)
        hosts_KG[cell_K, found.gpu] = present
        after_WKG += instance.loads_of(layer_K, expert_K, hosts_KG)
    slope_WK = goal.slope(placing.loads_WLG[:, rows], rows)[:, found.row]
    power_WK = (raise_to_power(after_WKG, goal.doublings) - raise_to_power(before_WKG, goal.doublings)).sum(axis=2)
    lost_REG, gained_REG = _local_changes(placing, rows)
    local_K = gained_REG[found.row, found.entering, found.gpu] - lost_REG[found.row, found.leaving, found.gpu]
    change_K: Floats = (slope_WK * power_WK).sum(axis=0) - goal.local_weight * local_K
    return change_K
