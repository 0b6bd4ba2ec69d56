"""EPLB: the published greedy that engines balance experts with, written anew on numpy.

Source of the method: DeepSeek, "Expert Parallelism Load Balancer", https://github.com/deepseek-ai/EPLB (2025);
SGLang runs it as ``--eplb-algorithm deepseek`` and ``deepseek_hierarchical``. It levels the load per replica and
knows neither where tokens live nor that the second replica on a GPU is useless; such duplicates are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from placement.baselines.packing import pack_heaviest_first
from placement.baselines.trivial import layout_with_trivial_idle_layers
from placement.errors import BadOption, GroupsNotDivisible
from placement.layout import Layout
from placement.notice import Notice
from placement.problem import Problem


class EplbMode(StrEnum):
    """Which of the two policies to use."""

    AUTO = "auto"
    """Hierarchical where expert groups are given and divide, else global: SGLang's ``auto``."""
    GLOBAL = "global"
    """All experts over all GPUs; nodes and groups are not looked at."""
    HIERARCHICAL = "hierarchical"
    """Expert groups to nodes first, then replicas inside each node."""


@dataclass(frozen=True)
class EplbPlan:
    """An EPLB layout.

    Attributes
    ----------
    layout : Layout
    mode : EplbMode
        The policy that made it, ``GLOBAL`` or ``HIERARCHICAL``.
    notices : tuple of Notice
        ``GROUPS_IGNORED`` when groups were given and could not be used.
    """

    layout: Layout
    mode: EplbMode
    notices: tuple[Notice, ...] = ()


def eplb(problem: Problem, *, seed: int = 0) -> Layout:
    """Return EPLB's layout for a model without expert groups; the seed is not used. See :func:`plan_eplb`."""
    return plan_eplb(problem).layout


def plan_eplb(problem: Problem, *, expert_groups: int | None = None, mode: EplbMode = EplbMode.AUTO) -> EplbPlan:
    """Plan with EPLB on demand summed over windows and sources.

    Parameters
    ----------
    problem : Problem
    expert_groups : int or None
        Groups of the router's group-limited selection (``ModelShape.expert_groups``).
    mode : EplbMode

    Raises
    ------
    GroupsNotDivisible
        ``HIERARCHICAL`` was asked for, but groups do not divide the experts or nodes do not divide the groups.
    BadOption
        ``HIERARCHICAL`` without groups, or fewer than one group.
    """
    if expert_groups is not None and expert_groups < 1:
        raise BadOption(f"expert_groups is {expert_groups}; a model has at least 1 group.")
    used, notices = _choose_mode(problem, expert_groups, mode)
    hierarchical = used is EplbMode.HIERARCHICAL
    slots_LP = rebalance(
        problem.demand.tokens_WLE.sum(axis=0),
        slots=problem.slots,
        gpus=problem.topology.gpus,
        nodes=problem.topology.nodes if hierarchical else 1,
        groups=(expert_groups or 1) if hierarchical else 1,
    )
    return EplbPlan(layout_with_trivial_idle_layers(slots_LP, problem), used, notices)


def _choose_mode(problem: Problem, expert_groups: int | None, mode: EplbMode) -> tuple[EplbMode, tuple[Notice, ...]]:
    if mode is EplbMode.GLOBAL or (mode is EplbMode.AUTO and expert_groups is None):
        return EplbMode.GLOBAL, ()
    if expert_groups is None:
        raise BadOption("hierarchical EPLB needs the number of expert groups; give it, or plan with mode global.")
    obstacle = _why_groups_do_not_divide(problem.demand.experts, expert_groups, problem.topology.nodes)
    if not obstacle:
        return EplbMode.HIERARCHICAL, ()
    if mode is EplbMode.HIERARCHICAL:
        raise GroupsNotDivisible(f"{obstacle}: hierarchical EPLB is not possible.")
    return EplbMode.GLOBAL, (Notice("GROUPS_IGNORED", f"{obstacle}: EPLB planned globally, groups were not used."),)


def _why_groups_do_not_divide(experts: int, groups: int, nodes: int) -> str:
    if experts % groups:
        valid = [count for count in range(1, experts + 1) if experts % count == 0 and count % nodes == 0]
        hint = f"; {_nearest(valid, groups)} groups would" if valid else ""
        return f"{experts} experts do not divide into {groups} groups{hint}"
    if groups % nodes:
        valid = [count for count in range(1, groups + 1) if groups % count == 0]
        return (
            f"{groups} expert groups do not divide over {nodes} nodes; over {_nearest(valid, nodes)} nodes they would"
        )
    return ""


def _nearest(valid: list[int], wanted: int) -> int:
    return min(valid, key=lambda count: (abs(count - wanted), count))


def rebalance(
    tokens_LE: npt.NDArray[np.integer], *, slots: int, gpus: int, nodes: int = 1, groups: int = 1
) -> npt.NDArray[np.int64]:
    """Return EPLB's expert of every slot, int64 [L, P]; ``nodes = groups = 1`` is the global policy.

    Weights are float32 and packs add up in float64, as in the published code, so that roundings agree; equal
    weights keep their order. (The published code sorts with ``torch.sort``, which need not keep the order of
    equal weights and with recent torch does not above 16 items; and it adds the weights of a group in float32,
    where sums above 2^24 depend on the order of adding. Here both are fixed: stable order, sums rounded once.)

    ``groups`` divides E, ``nodes`` divides ``groups`` and ``gpus``, ``gpus`` divides ``slots >= E``.
    """
    layers, experts = tokens_LE.shape
    weight_LE = tokens_LE.astype(np.float32)
    node_experts, node_slots, node_gpus = experts // nodes, slots // nodes, gpus // nodes

    # Step 1: pack expert groups onto nodes; list the experts node by node. [L, E]
    listed_LE = _experts_by_node(weight_LE, nodes=nodes, groups=groups)

    # Step 2: replicate inside every node. From here a row is one node of one layer. [L * N, E / N] -> [L * N, P / N]
    weight_XE = np.take_along_axis(weight_LE, listed_LE, axis=1).reshape(layers * nodes, node_experts)
    expert_XP, replicas_XE = _replicate_highest_load_per_replica(weight_XE, slots=node_slots)

    # Step 3: pack the replicas onto the GPUs of the node; a pack's items keep their order of arrival. [L * N, P / N]
    per_replica_XE = np.divide(weight_XE, replicas_XE, dtype=np.float32)
    load_XP = np.take_along_axis(per_replica_XE, expert_XP, axis=1)
    gpu_XP, rank_XP = _pack_full(load_XP, packs=node_gpus)
    packed_XP = np.empty_like(expert_XP)
    np.put_along_axis(packed_XP, gpu_XP * (node_slots // node_gpus) + rank_XP, expert_XP, axis=1)

    # Step 4: from positions within the node back to expert ids. [L, P]
    first_N = np.arange(nodes) * node_experts
    position_LP = (packed_XP.reshape(layers, nodes, node_slots) + first_N[None, :, None]).reshape(layers, slots)
    return np.take_along_axis(listed_LE, position_LP, axis=1)


def _experts_by_node(weight_LE: npt.NDArray[np.float32], *, nodes: int, groups: int) -> npt.NDArray[np.int64]:
    """Return the experts in the order node, group within the node, expert within the group; int64 [L, E]."""
    layers, experts = weight_LE.shape
    group_size = experts // groups
    sums_LI = weight_LE.astype(np.float64).reshape(layers, groups, group_size).sum(axis=2)
    node_LI, rank_LI = _pack_full(sums_LI.astype(np.float32), packs=nodes)
    place_LI = node_LI * (groups // nodes) + rank_LI
    group_at_LI = np.argsort(place_LI, axis=1)
    listed_LIE: npt.NDArray[np.int64] = group_at_LI[:, :, None] * group_size + np.arange(group_size)
    return listed_LIE.reshape(layers, experts)


def _replicate_highest_load_per_replica(
    weight_XE: npt.NDArray[np.float32], *, slots: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give every further slot to the expert with the highest load per replica, the first of equals.

    Returns the expert of every slot, int64 [X, slots], and the replicas of every expert, int64 [X, E].
    """
    rows, experts = weight_XE.shape
    row_X = np.arange(rows)
    expert_XP = np.tile(np.arange(slots), (rows, 1))
    replicas_XE = np.ones((rows, experts), dtype=np.int64)
    per_replica_XE = weight_XE.copy()
    for slot in range(experts, slots):
        chosen_X = per_replica_XE.argmax(axis=1)
        expert_XP[:, slot] = chosen_X
        replicas_XE[row_X, chosen_X] += 1
        per_replica_XE[row_X, chosen_X] = weight_XE[row_X, chosen_X] / replicas_XE[row_X, chosen_X].astype(np.float32)
    return expert_XP, replicas_XE


def _pack_full(
    weight_XI: npt.NDArray[np.float32], *, packs: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pack every row so that all packs are full; with one item a pack, items stay where they are."""
    rows, items = weight_XI.shape
    if items == packs:
        return np.tile(np.arange(items), (rows, 1)), np.zeros((rows, items), dtype=np.int64)
    return pack_heaviest_first(weight_XI, packs=packs, room=items // packs)
