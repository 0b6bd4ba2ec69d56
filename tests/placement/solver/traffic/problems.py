"""Small problems whose experts come in groups that are hidden in their numbering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from placement.demand import Demand
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import score_tokens
from placement.step_counts import hashed
from placement.token_sample import TokenSample
from placement.tokens import NO_EXPERT, Tokens
from placement.topology import Topology
from tests.placement.token_traces import some_tokens


def grouped_tokens(
    *,
    layers: int = 2,
    experts: int = 16,
    groups: int = 4,
    top_k: int = 3,
    count: int = 400,
    loyalty: float = 0.9,
    homes: int = 0,
    windows: int = 1,
    seed: int = 0,
) -> Tokens:
    """Make tokens that take their experts from one group each, mostly; layer 0 is dense."""
    generator = np.random.default_rng(seed)
    group_T = generator.integers(0, groups, count)
    topk = np.full((layers + 1, count, top_k), NO_EXPERT, dtype=np.uint16)
    for layer in range(1, layers + 1):
        group_of_E = generator.permutation(np.arange(experts) % groups)
        taste_TE = generator.random((count, experts)) + loyalty * (group_of_E == group_T[:, None])
        topk[layer] = np.argsort(-taste_TE, axis=1)[:, :top_k]
    home = group_T % homes if homes else None
    return some_tokens(topk, experts=experts, home=home, window=np.arange(count) % windows)


def demand_of(tokens: Tokens, *, gpus: int) -> Demand:
    """Add tokens up."""
    windows = int(tokens.window_T.max()) + 1
    sources = 1 if tokens.home_T is None else gpus
    counts = np.zeros((windows, tokens.layers, sources, tokens.experts), dtype=np.int64)
    home_T = np.zeros(tokens.tokens, dtype=int) if tokens.home_T is None else tokens.home_T
    for layer, ids_TK in enumerate(tokens.experts_LTK):
        token, column = np.nonzero(ids_TK != NO_EXPERT)
        np.add.at(counts, (tokens.window_T[token], layer, home_T[token], ids_TK[token, column]), 1)
    return Demand(counts, tokens.sources, tuple(f"w{index}" for index in range(windows)))


def problem_of(tokens: Tokens, *, gpus: int, slots_per_gpu: int, nodes: int = 1, **options: Any) -> Problem:
    return Problem(
        demand_of(tokens, gpus=gpus),
        Topology(gpus, nodes),
        slots_per_gpu,
        tokens=TokenSample(tokens, recorded_tokens=tokens.tokens),
        **{"objective": Objective.TRAFFIC, "max_imbalance": 1.2, **options},
    )


def shuffled(tokens: Tokens) -> Tokens:
    """Permute every layer's choices among tokens: demand stays, and what is chosen together becomes chance."""
    layers = []
    for layer, ids_TK in enumerate(tokens.experts_LTK):
        mixed = ids_TK.copy()
        for column in range(tokens.top_k):
            order = np.argsort(hashed(np.arange(tokens.tokens), seed=layer * tokens.top_k + column))
            mixed[:, column] = mixed[order, column]
        layers.append(mixed)
    return replace(tokens, experts_LTK=np.stack(layers))


def copies_of(layout: Layout, problem: Problem) -> float:
    """Count copies per token with the ruler."""
    found = score_tokens({"it": layout}, [problem.tokens.tokens], problem.topology, dispatch=problem.dispatch)
    return found["it"].gpus_per_token
