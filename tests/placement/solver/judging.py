"""What the ruler says about a solution, for the dispatch that it was planned for."""

from __future__ import annotations

import numpy as np

from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.metrics import Metrics
from placement.problem import LocalScope, Objective, Problem
from placement.score import score
from placement.solution import Solution


def planned_dispatch(problem: Problem) -> Dispatch:
    """Static dispatch is planned for its expectation."""
    static = problem.dispatch is Dispatch.NEAREST_STATIC
    return Dispatch.NEAREST_DYNAMIC if static else problem.dispatch


def measured(problem: Problem, layout: Layout) -> Metrics:
    return score(layout, problem.demand, problem.topology, dispatch=planned_dispatch(problem))


def worst_window(problem: Problem, layout: Layout) -> float:
    return measured(problem, layout).worst_window.imbalance


def local_share(problem: Problem, layout: Layout) -> float | None:
    """The share that the problem asks for; None where nothing is local."""
    metrics = measured(problem, layout)
    return metrics.local_node if problem.local_scope is LocalScope.NODE else metrics.local_gpu


def local_bound(problem: Problem, solution: Solution) -> float | None:
    return solution.bound.local_node if problem.local_scope is LocalScope.NODE else solution.bound.local_gpu


def localises(problem: Problem) -> bool:
    return problem.objective is Objective.LOCALITY and problem.dispatch is not Dispatch.EVEN


def codes(solution: Solution) -> set[str]:
    return {notice.code for notice in solution.notices}


def faults_of(problem: Problem, layout: Layout) -> list[str]:
    """Say what makes a layout unusable for a problem; nothing for a valid one. Counts the experts itself."""
    demand, gpus, room = problem.demand, problem.topology.gpus, problem.slots_per_gpu
    if layout.slot_to_expert_LP.shape != (demand.layers, gpus * room):
        return [f"the shape is {layout.slot_to_expert_LP.shape}"]
    faults = []
    for layer, row_P in enumerate(layout.slot_to_expert_LP.tolist()):
        held = [row_P[gpu * room : (gpu + 1) * room] for gpu in range(gpus)]
        if layer not in demand.moe_layers:
            if row_P != kept_row(problem, layer).tolist():
                faults.append(f"dense layer {layer} has {row_P}")
            continue
        if set(row_P) != set(range(demand.experts)):
            faults.append(f"layer {layer} has the experts {sorted(set(row_P))}")
        faults += [f"layer {layer}, GPU {gpu} holds {each}" for gpu, each in enumerate(held) if len(set(each)) < room]
    return faults


def kept_row(problem: Problem, layer: int) -> np.ndarray:
    """The row that a layer without demand must have: the running one, or the trivial one."""
    if problem.current is not None:
        return problem.current.slot_to_expert_LP[layer]
    return np.arange(problem.slots) % problem.demand.experts
