"""Layouts to compare on an engine, and what they are predicted to cost and do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from placement.baselines import BASELINES
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import score
from placement.solver import solve
from placement.topology import flat_or_nodes
from tests.gpu.traffic import Routed


def baseline(name: str, demand: Demand, *, gpus: int, slots: int, dispatch: Dispatch, seed: int = 0) -> Layout:
    """Return a layout of moeplan's baselines: trivial, random, eplb or hot_replication."""
    return BASELINES[name](_problem(demand, gpus=gpus, slots=slots, dispatch=dispatch), seed=seed)


def worst(demand: Demand, *, gpus: int, slots: int) -> Layout:
    """Return the least balanced layout: hottest experts together, the coldest one in all redundant slots."""
    tokens_LE = demand.tokens_WLE.sum(axis=0)
    rows = []
    for tokens_E in tokens_LE:
        order = np.argsort(-tokens_E, kind="stable").tolist()
        rows.append(order + order[-1:] * (slots - len(order)))
    return Layout(np.asarray(rows), gpus=gpus, experts=demand.experts)


def domain_layout(kept: int, *, layers: int, experts: int, gpus: int, slots: int) -> Layout:
    """Return a layout in which GPU g holds ``kept`` experts of its domain (those with ``e % gpus == g``).

    The rest of every domain is dealt out in turn to the other GPUs from the next one on (with ``kept == 0`` all of it
    to the next one), so that every GPU gets as many as it gives. Redundant slots take experts that their GPU lacks,
    those of its own domain first.
    """
    own = experts // gpus
    held: list[list[int]] = [[] for _ in range(gpus)]
    for gpu in range(gpus):
        domain = list(range(gpu, experts, gpus))
        others = [(gpu + step) % gpus for step in range(1, gpus if kept else 2)]
        held[gpu] += domain[:kept]
        for index, expert in enumerate(domain[kept:]):
            held[others[index % len(others)]].append(expert)
    for gpu in range(gpus):
        lacking = [expert for expert in range(experts) if expert not in held[gpu]]
        lacking.sort(key=lambda expert, gpu=gpu: expert % gpus != gpu)  # type: ignore[misc]
        held[gpu] += lacking[: slots // gpus - own]
    row = [expert for hosts in held for expert in hosts]
    return Layout(np.asarray([row] * layers), gpus=gpus, experts=experts)


def planned(
    demand: Demand, objective: Objective, *, gpus: int, slots: int, dispatch: Dispatch, max_imbalance: float = 1.05
) -> Layout:
    """Return moeplan's layout for an objective."""
    problem = _problem(
        demand, gpus=gpus, slots=slots, dispatch=dispatch, objective=objective, max_imbalance=max_imbalance
    )
    return solve(problem).layout


def _problem(demand: Demand, *, gpus: int, slots: int, dispatch: Dispatch, **more: object) -> Problem:
    topology, _notices = flat_or_nodes(gpus=gpus, nodes=1)
    return Problem(demand, topology, slots // gpus, dispatch=dispatch, **more)  # type: ignore[arg-type]


def predicted(layout: Layout, demand: Demand, *, gpus: int, dispatch: Dispatch) -> tuple[float, float | None]:
    """Return imbalance and own-GPU share by moeplan's ruler."""
    topology, _notices = flat_or_nodes(gpus=gpus, nodes=1)
    metrics = score(layout, demand, topology, dispatch=dispatch)
    return metrics.imbalance, metrics.local_gpu


def copies_per_token(layout: Layout, routed: Routed, *, seed: int = 0) -> float:
    """Return how many other GPUs a token goes to per layer, under nearest-dynamic dispatch on one node.

    A pair with a replica on the token's GPU stays; every other pair takes one of all replicas at random, drawn once
    here, which the mean over many tokens does not notice.
    """
    draw = np.random.default_rng(seed)
    copies = 0
    for layer in range(layout.layers):
        copies += int(_remote_gpus_T(layout, layer, routed.experts_TLK[:, layer], routed.source_T, draw).sum())
    return copies / (len(routed.source_T) * layout.layers)


def _remote_gpus_T(
    layout: Layout,
    layer: int,
    expert_TK: npt.NDArray[np.int32],
    source_T: npt.NDArray[np.int64],
    draw: np.random.Generator,
) -> npt.NDArray[np.int64]:
    slots_E: Sequence[npt.NDArray[np.int64]] = [
        np.flatnonzero(layout.slot_to_expert_LP[layer] == expert) for expert in range(layout.experts)
    ]
    width = max(map(len, slots_E))
    gpu_ER = np.array([np.resize(slots // layout.slots_per_gpu, width) for slots in slots_E])
    replicas_E = np.array([len(slots) for slots in slots_E])
    at_home_TK = layout.replicas_LEG[layer].astype(bool)[expert_TK, source_T[:, None]]
    choice_TK = (draw.random(expert_TK.shape) * replicas_E[expert_TK]).astype(np.int64)
    gpu_TK = np.where(at_home_TK, source_T[:, None], gpu_ER[expert_TK, choice_TK])
    goes_TG = np.zeros((len(expert_TK), layout.gpus), dtype=bool)
    np.put_along_axis(goes_TG, gpu_TK, values=True, axis=1)
    return goes_TG.sum(axis=1) - goes_TG[np.arange(len(source_T)), source_T]
