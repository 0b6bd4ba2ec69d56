"""Small layers without replicas exactly: better columns from CP-SAT, and how few copies they can have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from placement.solver.instance import Ints
from placement.solver.model.copies import ExpertSets, FewestCopies, arrange
from placement.solver.placing import Slots
from placement.solver.starts import hosts_of_slots, slots_of_hosts
from placement.solver.traffic.layer_tokens import LayerTokens
from placement.solver.traffic.tasks import TrafficSearcher

MOST_EXPERTS = 12
MOST_SETS = 1500
"""Different sets of experts, times homes: a variable per GPU each."""

SECONDS = 4.0
"""Deterministic seconds for all layers together."""

MOST_SECONDS = 0.5
"""Of them for one model."""

RELAXATION = "every small layer's best arrangement (CP-SAT), no balance limit"


@dataclass(frozen=True, eq=False)
class SmallLayers:
    """What CP-SAT found.

    Attributes
    ----------
    slots_LGP : ndarray
        The layouts given, with small layers arranged better under the ceiling where that was found.
    fewest : mapping
        For every small layer, by its place among the MoE layers, a proven lower bound on the copies of its tokens.
    """

    slots_LGP: Slots
    fewest: Mapping[int, float]


def arrange_small_layers(searcher: TrafficSearcher, slots_LGP: Slots, *, ceiling: float) -> SmallLayers:
    """Arrange layers of few experts, without replicas; others stay as they are."""
    instance = searcher.instance
    small = {
        layer: sets
        for layer, tokens in enumerate(searcher.layers)
        if instance.experts <= MOST_EXPERTS and instance.slots == instance.experts
        if (sets := sets_of(tokens)) is not None
    }
    hosts_LEG = hosts_of_slots(slots_LGP, experts=instance.experts)
    seconds = min(MOST_SECONDS, SECONDS / max(1, 2 * len(small)))
    fewest: dict[int, float] = {}
    for layer, sets in small.items():
        if searcher.deadline.passed:
            break
        remote = 1.0 if sets.home_U is not None else 1 - 1 / instance.gpus
        freely = _arranged(searcher, layer, sets, hosts_LEG[layer].argmax(axis=1), ceiling=None, seconds=seconds)
        fewest[layer] = remote * freely.at_least
        found = _arranged(searcher, layer, sets, hosts_LEG[layer].argmax(axis=1), ceiling=ceiling, seconds=seconds)
        if found.gpu_E is not None:
            hosts_LEG[layer] = found.gpu_E[:, None] == np.arange(instance.gpus)
    return SmallLayers(slots_of_hosts(hosts_LEG), fewest)


def sets_of(tokens: LayerTokens) -> ExpertSets | None:
    """Gather tokens that need the same experts (and live on the same GPU); None where there are too many kinds."""
    chosen_TE = np.zeros((tokens.tokens, tokens.experts + 1), dtype=np.int64)
    chosen_TE[np.arange(tokens.tokens)[:, None], tokens.experts_TK] = 1
    home_T = np.zeros(tokens.tokens, dtype=np.int64) if tokens.home_T is None else tokens.home_T.astype(np.int64)
    bits_T = chosen_TE[:, :-1] @ (1 << np.arange(tokens.experts)) + (home_T << tokens.experts)
    kinds_U, first_U, tokens_U = np.unique(bits_T, return_index=True, return_counts=True)
    if len(kinds_U) > MOST_SETS:
        return None
    experts_of = tuple(tuple(np.flatnonzero(chosen_TE[token, :-1]).tolist()) for token in first_U.tolist())
    return ExpertSets(experts_of, tokens_U, None if tokens.home_T is None else home_T[first_U])


def _arranged(
    searcher: TrafficSearcher, layer: int, sets: ExpertSets, hint_E: Ints, *, ceiling: float | None, seconds: float
) -> FewestCopies:
    if sets.home_U is None:
        # The model names GPUs in the order in which experts appear on them.
        _, first_X, name_E = np.unique(hint_E, return_index=True, return_inverse=True)
        hint_E = np.argsort(np.argsort(first_X))[name_E]
    return arrange(
        sets,
        hint_E=hint_E,
        gpus=searcher.instance.gpus,
        load_WE=searcher.instance.total_WLE[:, layer],
        ceiling=ceiling,
        seed=searcher.seed,
        effort=seconds,
        time_limit_s=searcher.deadline.left_s,
    )
