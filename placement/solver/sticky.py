"""Staying close to the layout that runs: names of GPUs, order of slots, and whether moving is worth it."""

from __future__ import annotations

import numpy as np
from ortools.graph.python import linear_sum_assignment

from placement.diff import align
from placement.layout import Layout
from placement.problem import Problem
from placement.solver.instance import Bools, Instance, Ints
from placement.solver.placing import Slots
from placement.solver.plans import Plans, plans_of
from placement.solver.starts import hosts_of_slots, slots_of_hosts

WORTH_MOVING = 1e-3
"""A plan that is better by less than this part is not worth moving weights: the running layout stays."""


def running_layout(problem: Problem) -> Layout:
    """Return the layout that moves are counted from: the current one, or the trivial one that engines start with."""
    if problem.current is not None:
        return problem.current
    trivial_P = np.arange(problem.slots, dtype=np.int32) % problem.demand.experts
    rows_LP = np.tile(trivial_P, (problem.demand.layers, 1))
    return Layout(rows_LP, gpus=problem.topology.gpus, experts=problem.demand.experts)


def running_slots(problem: Problem) -> Slots:
    """Return the MoE rows of the running layout, whatever they hold."""
    layers = list(problem.demand.moe_layers)
    rows_LP = running_layout(problem).slot_to_expert_LP[layers].astype(np.int64)
    return rows_LP.reshape(len(layers), problem.topology.gpus, problem.slots_per_gpu)


def moved_slots(slots_LGP: Slots, current_LGP: Slots, *, experts: int) -> int:
    """Count the experts that come to a GPU that does not hold them now."""
    new_LEG = hosts_of_slots(slots_LGP, experts=experts)
    now_LEG = hosts_of_slots(current_LGP, experts=experts)
    return int((new_LEG & ~now_LEG).sum())


def with_gpus_renamed(instance: Instance, plans: Plans, current_LGP: Slots) -> Plans:
    """Give the GPUs of every layer the names under which least moves, where no figure changes by it.

    GPUs are alike under uniform sources on one node; on several nodes GPUs keep their nodes together, and a
    layer whose peaks would change (the engine prefers the first host in a node) stays as it is. With measured
    sources every GPU has its own traffic.
    """
    if instance.value_LEM.shape[2] > 1 or (instance.demand_WLES.shape[3] > 1):
        return plans
    hosts_LEG = hosts_of_slots(plans.slots_LGP, experts=instance.experts)
    now_LEG = hosts_of_slots(current_LGP, experts=instance.experts)
    renamed_LEG = hosts_LEG.copy()
    for layer in range(instance.layers):
        nodes = 1 if instance.even else instance.nodes
        renamed_LEG[layer][:, _best_names(hosts_LEG[layer], now_LEG[layer], nodes=nodes)] = hosts_LEG[layer]
    renamed = plans_of(instance, slots_of_hosts(renamed_LEG))
    worse_L: Bools = (renamed.peak_WL - plans.peak_WL * (1 + 1e-12)).max(axis=0) > 0
    slots_LGP = np.where(worse_L[:, None, None], plans.slots_LGP, renamed.slots_LGP)
    return plans_of(instance, slots_LGP)


def _best_names(hosts_EG: Bools, now_EG: Bools, *, nodes: int) -> Ints:
    """Return the new name of every GPU, int64 [G], for the largest overlap with what GPUs hold now."""
    overlap_GG = hosts_EG.T.astype(np.int64) @ now_EG.astype(np.int64)
    size = len(overlap_GG) // nodes
    blocks = overlap_GG.reshape(nodes, size, nodes, size).transpose(0, 2, 1, 3)
    names_NNg = np.array([[_assign(block) for block in row] for row in blocks])
    overlap_NN = np.take_along_axis(blocks, names_NNg[..., None], axis=3)[..., 0].sum(axis=2)
    node_N = _assign(overlap_NN)
    names: Ints = np.concatenate([names_NNg[old, new] + new * size for old, new in enumerate(node_N)])
    return names


def _assign(gain_NN: Ints) -> list[int]:
    """Return the one-to-one assignment of rows to columns with the largest gain."""
    size = len(gain_NN)
    problem = linear_sum_assignment.SimpleLinearSumAssignment()
    row, column = np.divmod(np.arange(size * size), size)
    problem.add_arcs_with_cost(row, column, -gain_NN.ravel())
    status = problem.solve()
    if status != problem.OPTIMAL:
        raise RuntimeError(f"the assignment of GPU names ended with {status}")
    return [problem.right_mate(each) for each in range(size)]


def layout_of(problem: Problem, plans: Plans) -> Layout:
    """Put planned MoE rows between the rows of layers without demand.

    Those keep the running layout's row, or the trivial one (slot p holds expert p modulo experts). Inside a GPU
    experts keep the slot that they have in the running layout; without one they are in ascending order.
    """
    layers = list(problem.demand.moe_layers)
    rows_LP = running_layout(problem).slot_to_expert_LP.astype(np.int64)
    rows_LP[layers] = np.sort(plans.slots_LGP, axis=2).reshape(len(layers), problem.slots)
    layout = Layout(rows_LP.astype(np.int32), gpus=problem.topology.gpus, experts=problem.demand.experts)
    return layout if problem.current is None else align(layout, to=problem.current)
