"""The CP-SAT model of one small layer: every rule by itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.solver.model.copies import ExpertSets, arrange
from placement.solver.traffic.layer_tokens import LayerTokens
from placement.solver.traffic.small_layers import sets_of

PAIRS = ExpertSets(((0, 1), (2, 3)), np.array([5, 5]), None)
EVEN = np.full((1, 4), 0.5)
APART = np.array([0, 1, 0, 1])


def _arrange(sets: ExpertSets, *, gpus: int = 2, load_WE=EVEN, ceiling=None, hint_E=APART):
    return arrange(
        sets, hint_E=hint_E, gpus=gpus, load_WE=load_WE, ceiling=ceiling, seed=0, effort=2.0, time_limit_s=np.inf
    )


def test_experts_that_are_needed_together_share_a_gpu():
    found = _arrange(PAIRS)
    assert found.gpu_E.tolist() == [0, 0, 1, 1]
    assert found.at_least == 10


def test_a_load_above_the_ceiling_is_refused():
    # Experts 0 and 1 are too heavy to be together.
    load_WE = np.array([[0.8, 0.8, 0.2, 0.2]])
    found = _arrange(PAIRS, load_WE=load_WE, ceiling=1.1)
    assert found.gpu_E[0] != found.gpu_E[1]
    assert found.at_least == 20
    assert _arrange(PAIRS, load_WE=load_WE, ceiling=1.7).at_least == 10
    assert _arrange(PAIRS, load_WE=load_WE * 3, ceiling=1.0).gpu_E is None


def test_every_gpu_holds_as_many():
    everything = ExpertSets(((0, 1, 2, 3),), np.array([7]), None)
    assert sorted(_arrange(everything).gpu_E.tolist()) == [0, 0, 1, 1]


def test_the_home_gpu_is_not_counted():
    at_home = ExpertSets(((0,), (1,)), np.array([3, 4]), np.array([1, 0]))
    found = _arrange(at_home)
    assert (found.gpu_E[0], found.gpu_E[1], found.at_least) == (1, 0, 0)


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=20, deadline=None)
def test_nothing_beats_it(seed, has_homes):
    generator = np.random.default_rng(seed)
    experts, gpus = 6, 3
    topk = np.array([generator.permutation(experts)[:3] for _ in range(25)], dtype=np.uint16)
    topk[generator.random(topk.shape) < 0.2] = experts
    home = generator.integers(0, gpus, 25).astype(np.int32) if has_homes else None
    sets = sets_of(LayerTokens(topk, home, experts, gpus, 1))
    found = _arrange(sets, gpus=gpus, hint_E=np.arange(6) // 2, load_WE=np.ones((1, 6)))

    best = np.inf
    for gpu_E in set(itertools.permutations([0, 0, 1, 1, 2, 2])):
        needed = 0
        for token, row in enumerate(topk.tolist()):
            gpus_of = {gpu_E[expert] for expert in row if expert < experts}
            needed += len(gpus_of - ({int(home[token])} if has_homes else set()))
        best = min(best, needed)
    assert found.at_least == pytest.approx(best)


def test_too_many_kinds_of_tokens_are_left_to_the_search(monkeypatch):
    monkeypatch.setattr("placement.solver.traffic.small_layers.MOST_SETS", 2)
    topk = np.array([[0, 1], [0, 2], [1, 2]], dtype=np.uint16)
    assert sets_of(LayerTokens(topk, None, 3, 3, 1)) is None
    assert sets_of(LayerTokens(topk[:2], None, 3, 3, 1)) is not None
