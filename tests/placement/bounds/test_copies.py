"""The bound on copies per token against every layout of tiny problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.bounds import copies_bound
from placement.bounds.copies import BY_COMPANIONS, BY_HOMES, largest_sum
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.score import count_copies
from placement.tokens import NO_EXPERT
from placement.topology import Topology
from tests.placement.token_traces import some_tokens


def _fewest(tokens, topology: Topology, slots_per_gpu: int, dispatch: Dispatch) -> float:
    """Return the fewest copies of any layout of one layer, by trying all."""
    contents = list(itertools.combinations(range(tokens.experts), slots_per_gpu))
    layouts = {}
    for chosen in itertools.product(contents, repeat=topology.gpus):
        row = [expert for held in chosen for expert in held]
        if len(set(row)) == tokens.experts:
            layouts[str(row)] = Layout(np.array([row]), gpus=topology.gpus, experts=tokens.experts)
    found = count_copies(layouts, [tokens], topology, dispatch=dispatch, windows=1)
    return min(copies.gpus_per_token for copies in found.values())


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([(4, 2, 2), (4, 2, 3), (3, 3, 1), (3, 3, 2), (5, 2, 3)]), st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_no_layout_has_fewer_copies(seed, shape, has_homes):
    experts, gpus, slots_per_gpu = shape
    generator = np.random.default_rng(seed)
    k = int(generator.integers(1, 4))
    topk = np.array([generator.permutation(experts)[:k] for _ in range(12)])
    topk[generator.random(topk.shape) < 0.2] = NO_EXPERT
    topk[0, 0] = 0
    home = generator.integers(0, gpus, 12) if has_homes else None
    tokens = some_tokens([topk], experts=experts, home=home)
    dispatch = Dispatch.NEAREST_DYNAMIC if seed % 2 else Dispatch.NEAREST_STATIC

    bound = copies_bound(tokens, Topology(gpus), slots_per_gpu)

    assert bound.value <= _fewest(tokens, Topology(gpus), slots_per_gpu, dispatch) + 1e-5


def test_pairs_that_always_meet_are_bounded_exactly():
    # Experts come in fixed pairs, and two pairs fit on each GPU: with each pair kept together one GPU serves a token.
    topk = [[[0, 1], [2, 3], [4, 5], [6, 7]] * 5]
    bound = copies_bound(some_tokens(topk, experts=8), Topology(4), 2)
    assert (bound.value, bound.relaxation) == (pytest.approx(1 - 1 / 4), BY_COMPANIONS)


def test_experts_that_never_meet_are_bounded_exactly():
    topk = [[[a, b] for a, b in itertools.product(range(3), range(3, 6))]]
    # One slot per GPU: nothing can be together, every token needs two GPUs.
    bound = copies_bound(some_tokens(topk, experts=6), Topology(6), 1)
    assert bound.value == pytest.approx(2 - 2 / 6)


def test_with_many_replicas_tokens_that_leave_home_count():
    topk = [[[0], [1], [2], [3]] * 3]
    bound = copies_bound(some_tokens(topk, experts=4), Topology(2), 3)
    assert bound.value == pytest.approx(1 / 4)


def test_the_better_bound_of_each_layer_is_taken_and_named():
    generator = np.random.default_rng(0)
    # Many slots: companions say little, but a quarter of the experts is not at home.
    topk = np.array([generator.permutation(16)[:8] for _ in range(200)])
    found = copies_bound(some_tokens([topk], experts=16), Topology(2), 12)
    assert (found.value, found.relaxation) == (pytest.approx(1 / 4, abs=0.02), BY_HOMES)


@given(st.integers(0, 2**32 - 1), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_no_set_of_experts_is_worth_more(seed, picks):
    generator = np.random.default_rng(seed)
    chosen = (generator.random((15, 5)) < 0.4).astype(float)
    gain = np.sort(generator.random(7))[::-1]
    worth = lambda held: sum(gain[: int(row[list(held)].sum())].sum() for row in chosen)  # noqa: E731
    best = max(worth(held) for held in itertools.combinations(range(5), picks))
    assert best <= largest_sum(chosen, picks=picks, gain_X=gain) + 1e-9
