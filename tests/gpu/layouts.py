"""Layouts to compare on an engine, and what they are predicted to cost and do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.baselines import BASELINES
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import score, score_tokens
from placement.solver import solve
from placement.tokens import PHASE_NUMBERS, UNKNOWN_STEP, Tokens
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


def whole_map(layout: Layout, *, dense_layers: int) -> Layout:
    """Return the map that an engine holds: a layer without experts has a row too, which means nothing."""
    if not dense_layers:
        return layout
    any_row = np.arange(layout.slots) % layout.experts
    rows_LP = np.concatenate([np.tile(any_row, (dense_layers, 1)), layout.slot_to_expert_LP])
    return Layout(rows_LP, gpus=layout.gpus, experts=layout.experts)


def layers_with_experts(layout: Layout, *, dense_layers: int) -> Layout:
    """Return a whole map without its rows of layers that have no experts."""
    return Layout(layout.slot_to_expert_LP[dense_layers:], gpus=layout.gpus, experts=layout.experts)


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


def demand_of(routed: Routed, *, experts: int, gpus: int, tokens_per_step: int | None = None) -> Demand:
    """Return the demand of single tokens by home GPU: in one window, or in one per step of so many tokens per GPU."""
    layers = routed.experts_TLK.shape[1]
    window_T = step_of_token(routed, tokens_per_step)
    windows = int(window_T.max()) + 1
    tokens_WLSE = np.zeros((windows, layers, gpus, experts), dtype=np.int64)
    for layer in range(layers):
        expert_TK = routed.experts_TLK[:, layer]
        pair_N = ((window_T * gpus + routed.source_T)[:, None] * experts + expert_TK).ravel()
        counts_N = np.bincount(pair_N, minlength=windows * gpus * experts)
        tokens_WLSE[:, layer] = counts_N.reshape(windows, gpus, experts)
    return Demand(tokens_WLSE, "measured", tuple(f"step {window}" for window in range(windows)))


def step_of_token(routed: Routed, tokens_per_step: int | None) -> npt.NDArray[np.int64]:
    """Return in which step each token runs, [T], when every GPU takes its tokens in order."""
    step_T = np.zeros(len(routed.source_T), dtype=np.int64)
    if tokens_per_step is not None:
        for source in np.unique(routed.source_T):
            here_T = routed.source_T == source
            step_T[here_T] = np.arange(int(here_T.sum())) // tokens_per_step
    return step_T


def tokens_of(routed: Routed, *, experts: int, tokens_per_step: int | None = None) -> Tokens:
    """Return the tokens as moeplan's ruler takes them, windows as in :func:`demand_of`."""
    count = len(routed.source_T)
    return Tokens(
        experts_LTK=np.ascontiguousarray(routed.experts_TLK.transpose(1, 0, 2)).astype(np.uint16),
        experts=experts,
        home_T=routed.source_T.astype(np.int32),
        window_T=step_of_token(routed, tokens_per_step).astype(np.int32),
        request_T=np.arange(count),
        step_T=np.full(count, UNKNOWN_STEP),
        phase_T=np.full(count, PHASE_NUMBERS["prefill"], dtype=np.uint8),
    )


def copies_per_token(layout: Layout, routed: Routed, *, dispatch: Dispatch) -> float:
    """Return how many other GPUs a token goes to per layer, by moeplan's ruler on single tokens."""
    topology, _notices = flat_or_nodes(gpus=layout.gpus, nodes=1)
    tokens = tokens_of(routed, experts=layout.experts)
    metrics = score_tokens({"layout": layout}, [tokens], topology, dispatch=dispatch)["layout"]
    if metrics.gpus_per_token is None:
        raise ValueError(f"under {dispatch.value} dispatch no token is sent anywhere.")
    return metrics.gpus_per_token
