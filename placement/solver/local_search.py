"""Local search: swaps until none helps, for all layers of a batch together, each as if it were alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placement.solver.deadline import Deadline
from placement.solver.goal import Goal, raise_to_power
from placement.solver.instance import Bools, Floats, Instance, Ints
from placement.solver.placing import Placing, SwapList
from placement.solver.replicas import improve_by_replacing, replace_by_rank
from placement.solver.swaps import best_swaps

SOFT = 3
"""Doublings at which replacements are ranked and repaired first when they are tried out."""

REPAIRS = 8
"""Swaps that a tried replacement gets, softly and again at the last power."""

TIES_ONLY = 1e-3
"""Weights on local share up to this one only break ties."""

HOT_GPUS = 3
"""How many of a layer's hottest GPUs must be without an improving swap before it counts as settled."""


@dataclass(frozen=True)
class Effort:
    """How long to search.

    Attributes
    ----------
    doublings : tuple of int
        Powers of the norm, as in :class:`Goal`, from soft to nearly the maximum.
    tours : int
        Rounds of all GPU pairs per power, at most.
    hot_steps : int
        Swaps with the hottest GPU per power and layer, at most.
    replacements : int
        Replicas replaced by others at the first power, per layer, at most.
    trials : int
        Replacements tried at the end although they seem to cost something, with swaps to repair them.
    rounds : int
        Searches at prices of the master.
    stall : float
        Relative progress of the master below which a search counts as idle.
    patience : int
        Idle searches in a row after which they stop.
    restarts : int
        Times that a search for balance goes on from other start layouts after it has stopped.
    """

    doublings: tuple[int, ...] = (3, 6)
    tours: int = 1
    hot_steps: int = 40
    replacements: int = 12
    trials: int = 0
    rounds: int = 6
    stall: float = 2e-5
    patience: int = 2
    restarts: int = 0


SMALL_WORK = 4_000_000
"""Swaps of a tour of all pairs, over layers and windows: less work than this leaves time for more."""

FEWEST_TRIALS, MOST_TRIALS, MOST_ROUNDS = 3, 20, 10


def effort_for(instance: Instance) -> Effort:
    """Return the usual effort: more per layer where the whole is small."""
    pairs = max(1, instance.gpus * (instance.gpus - 1) // 2)
    work = instance.layers * pairs * instance.slots_per_gpu**2 * instance.windows
    if work > SMALL_WORK:
        return Effort(stall=1e-3, patience=1)
    # Where dispatch is not even a trial takes longer and hardly ever succeeds.
    trials = min(MOST_TRIALS, SMALL_WORK // work) if instance.even else 0
    rounds = MOST_ROUNDS if instance.windows > 1 else 6
    return Effort(trials=trials if trials >= FEWEST_TRIALS else 0, rounds=rounds, restarts=1)


def descend(placing: Placing, goal: Goal, effort: Effort, *, order_G: Ints, deadline: Deadline) -> None:
    """Improve a batch in place, power by power: all pairs of GPUs, the hottest GPUs, then replica counts.

    Parameters
    ----------
    order_G
        A permutation of the GPUs: where the round robin of pairs starts.
    """
    every_layer = np.arange(placing.instance.layers)
    open_L = every_layer
    for doublings in effort.doublings:
        sharper = replace(goal, doublings=doublings)
        _tour_pairs(placing, sharper, every_layer, tours=effort.tours, order_G=order_G, deadline=deadline)
        _cool_hottest(placing, sharper, every_layer, steps=effort.hot_steps, deadline=deadline)
        if doublings == effort.doublings[0]:
            open_L = _worth_other_replicas(placing, sharper, every_layer)
            changed = improve_by_replacing(placing, sharper, open_L, steps=effort.replacements, deadline=deadline)
            _cool_hottest(placing, sharper, changed, steps=effort.hot_steps, deadline=deadline)
    _try_replacements(placing, sharper, open_L, trials=effort.trials, deadline=deadline)


def _worth_other_replicas(placing: Placing, goal: Goal, rows: Ints) -> Ints:
    """Leave out layers in which balance is settled, unless replicas are also worth something for locality."""
    return rows if goal.local_weight > TIES_ONLY else rows[~goal.settled(placing, rows)]


def _try_replacements(placing: Placing, goal: Goal, rows: Ints, *, trials: int, deadline: Deadline) -> None:
    """Replace a replica, let swaps repair the balance, and keep the outcome where it is better.

    Replacements are tried from the most promising on; after a success the list starts anew.
    """
    rank_L = np.zeros(placing.instance.layers, dtype=np.int64)
    soft = replace(goal, doublings=SOFT)
    for _ in range(trials):
        if deadline.passed or not rows.size:
            return
        saved, before = placing.save(rows), goal.hard_value(placing, rows)
        changed = replace_by_rank(placing, soft, rows, rank_L[rows])
        _cool_hottest(placing, soft, changed, steps=REPAIRS, deadline=deadline)
        _cool_hottest(placing, goal, changed, steps=REPAIRS, deadline=deadline)
        after = goal.hard_value(placing, rows)
        undone = after > before - goal.least_gain(rows)
        placing.restore(rows, saved, undone)
        rank_L[rows] = np.where(undone, rank_L[rows] + 1, 0)
        rows = rows[np.isin(rows, changed)]


def round_robin(order_G: Ints) -> list[tuple[Ints, Ints]]:
    """Return rounds of disjoint pairs in which every two GPUs meet once (circle method)."""
    ids = order_G.tolist()
    if len(ids) % 2:
        ids.append(-1)
    half = len(ids) // 2
    rounds = []
    for _ in range(len(ids) - 1):
        pairs = [(a, b) for a, b in zip(ids[:half], ids[: half - 1 : -1], strict=True) if a >= 0 and b >= 0]
        if pairs:
            first, second = np.array(pairs, dtype=np.int64).T
            rounds.append((first, second))
        ids = [ids[0], ids[-1], *ids[1:-1]]
    return rounds


def _tour_pairs(placing: Placing, goal: Goal, rows: Ints, *, tours: int, order_G: Ints, deadline: Deadline) -> None:
    """Let all pairs of GPUs meet, the best swap of each pair in every round, while a layer still improves."""
    for _ in range(tours):
        improved_L = np.zeros(placing.instance.layers, dtype=np.bool_)
        for first_Q, second_Q in round_robin(order_G):
            rows = rows[~goal.settled(placing, rows)]
            if deadline.passed or not rows.size:
                return
            gpu_a_RQ = np.broadcast_to(first_Q, (len(rows), len(first_Q)))
            gpu_b_RQ = np.broadcast_to(second_Q, (len(rows), len(second_Q)))
            swaps, change, _ = best_swaps(placing, goal, rows, gpu_a_RQ, gpu_b_RQ)
            improved_L[_apply(placing, goal, swaps, change)] = True
        rows = rows[improved_L[rows]]


def _cool_hottest(placing: Placing, goal: Goal, rows: Ints, *, steps: int, deadline: Deadline) -> None:
    """Swap experts of the hottest GPU with any other GPU, one swap per layer and step.

    Where the hottest GPU has no improving swap the next hottest is tried, up to ``HOT_GPUS``.
    """
    gpus = placing.instance.gpus
    rank_L = np.zeros(placing.instance.layers, dtype=np.int64)
    for _ in range(steps):
        rows = rows[rank_L[rows] < min(HOT_GPUS, gpus)]
        rows = rows[~goal.settled(placing, rows)]
        if deadline.passed or not rows.size or gpus == 1:
            return
        hottest_RG = _by_heat(placing, goal, rows)
        hot_R1 = np.take_along_axis(hottest_RG, rank_L[rows][:, None], axis=1)
        others_RQ = np.broadcast_to(np.arange(gpus - 1), (len(rows), gpus - 1))
        others_RQ = others_RQ + (others_RQ >= hot_R1)
        swaps, change, row = best_swaps(placing, goal, rows, np.broadcast_to(hot_R1, others_RQ.shape), others_RQ)
        best = _best_per_row(change, row)
        applied = _apply(placing, goal, swaps.pick(best), change[best])
        rank_L[rows] += 1
        rank_L[applied] = 0


def _by_heat(placing: Placing, goal: Goal, rows: Ints) -> Ints:
    """Order the GPUs of some layers by what their load costs, dearest first; int64 [R, G]."""
    loads_WRG = placing.loads_WLG[:, rows]
    slope_WR = goal.slope(loads_WRG, rows)
    heat_RG = (slope_WR[:, :, None] * raise_to_power(loads_WRG, goal.doublings)).sum(axis=0)
    return np.argsort(-heat_RG, axis=1, kind="stable")


def _best_per_row(change: Floats, row: Ints) -> Bools:
    """Mark the entry of least change in every row."""
    marked = np.zeros(len(row), dtype=np.bool_)
    order = np.lexsort((change, row))
    first = np.flatnonzero(np.diff(row[order], prepend=-1))
    marked[order[first]] = True
    return marked


def _apply(placing: Placing, goal: Goal, swaps: SwapList, change: Floats) -> Ints:
    """Make swaps and return the layers that changed.

    For even instances the expected changes are sure. Else the outcome is compared: a layer that did not improve
    is put back and gets only its best swap, and nothing if that does not improve it either.
    """
    layers = np.unique(swaps.layer)
    if not layers.size or placing.instance.even:
        if layers.size:
            placing.swap(swaps)
        return layers
    worse = _try(placing, goal, swaps)
    if worse.size:
        again = np.isin(swaps.layer, worse)
        swaps, change = swaps.pick(again), change[again]
        several_L = np.bincount(swaps.layer, minlength=placing.instance.layers) > 1
        best = _best_per_row(change, swaps.layer) & several_L[swaps.layer]
        still_worse = _try(placing, goal, swaps.pick(best)) if best.any() else worse
        worse = np.union1d(still_worse, worse[~several_L[worse]])
    return np.setdiff1d(layers, worse)


def _try(placing: Placing, goal: Goal, swaps: SwapList) -> Ints:
    """Make swaps, put back the layers that do not improve, and return those."""
    layers = np.unique(swaps.layer)
    saved, before = placing.save(layers), goal.soft_value(placing, layers)
    placing.swap(swaps)
    undone = goal.soft_value(placing, layers) > before - goal.least_gain(layers)
    placing.restore(layers, saved, undone)
    return layers[undone]
