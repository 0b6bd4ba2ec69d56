"""Which GPU should take over which GPU's experts: an assignment problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from ortools.graph.python import linear_sum_assignment

from placement.errors import BadOption, SlotCountMismatch
from placement.layout import Layout
from placement.topology import Topology


def cheapest_gpu_relabelling(
    a: Layout, b: Layout, topology: Topology, *, counted_L: npt.NDArray[np.bool_]
) -> tuple[int, ...]:
    """Find the labels for the GPUs of ``b`` that leave as many experts of ``a`` in place as possible.

    On several nodes only labels that keep the GPUs of a node together are allowed: an assignment of GPUs for every
    pair of nodes gives the cost of an assignment of nodes to nodes.

    Parameters
    ----------
    a, b
        Layouts of the same shape.
    topology
        GPUs and nodes.
    counted_L
        Layers to count, bool [L].

    Returns
    -------
    tuple of int
        GPU g of ``b`` becomes GPU ``[g]`` of the result.

    Raises
    ------
    SlotCountMismatch
        The topology has another number of GPUs.
    """
    if a.gpus != topology.gpus:
        raise SlotCountMismatch(f"the layouts are for {a.gpus} GPUs, the topology has {topology.gpus}.")
    moves_GG = _moves_between(a, b, counted_L)
    size, nodes = topology.gpus_per_node, topology.nodes
    moves_NN = np.zeros((nodes, nodes), dtype=np.int64)
    labels = {}
    for old in range(nodes):
        for new in range(nodes):
            block = moves_GG[old * size : (old + 1) * size, new * size : (new + 1) * size]
            inside = _assign(block)
            labels[old, new] = inside
            moves_NN[old, new] = block[np.arange(size), inside].sum()
    new_gpu_of_G: list[int] = []
    for old, new in enumerate(_assign(moves_NN)):
        new_gpu_of_G.extend(new * size + gpu for gpu in labels[old, new])
    return tuple(new_gpu_of_G)


def with_gpus_relabelled(layout: Layout, new_gpu_of_G: Sequence[int]) -> Layout:
    """Return the layout in which GPU g has become GPU ``new_gpu_of_G[g]``, its slots in the same order.

    Raises
    ------
    BadOption
        The labels are not a permutation of the GPUs.
    """
    if sorted(new_gpu_of_G) != list(range(layout.gpus)):
        raise BadOption(f"{list(new_gpu_of_G)} is not a permutation of the GPUs 0 to {layout.gpus - 1}.")
    by_gpu_LGs = layout.slot_to_expert_LP.reshape(layout.layers, layout.gpus, layout.slots_per_gpu)
    relabelled = np.empty_like(by_gpu_LGs)
    relabelled[:, list(new_gpu_of_G)] = by_gpu_LGs
    return replace(layout, slot_to_expert_LP=relabelled.reshape(layout.layers, layout.slots))


def _moves_between(a: Layout, b: Layout, counted_L: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Count the slots that move when GPU ``row`` of ``b`` takes over GPU ``column`` of ``a``; int64 [G, G]."""
    moves_GG = np.zeros((a.gpus, a.gpus), dtype=np.int64)
    for layer in np.flatnonzero(counted_L).tolist():
        a_GE, b_GE = a.replicas_LEG[layer].T, b.replicas_LEG[layer].T
        for gpu in range(a.gpus):
            moves_GG[gpu] += np.maximum(b_GE[gpu] - a_GE, 0).sum(axis=1)
    return moves_GG


def _assign(cost_NN: npt.NDArray[np.int64]) -> list[int]:
    """Return the cheapest one-to-one assignment of rows to columns."""
    size = len(cost_NN)
    problem = linear_sum_assignment.SimpleLinearSumAssignment()
    rows, columns = np.divmod(np.arange(size * size), size)
    problem.add_arcs_with_cost(rows, columns, cost_NN.ravel())
    status = problem.solve()
    if status != problem.OPTIMAL:
        raise RuntimeError(f"the assignment of GPUs ended with status {status}.")
    return [problem.right_mate(row) for row in range(size)]
