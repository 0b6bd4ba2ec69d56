"""The bound on pairs of experts that share a GPU, against every partition of a few experts."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.bounds.pairs import most_pairs_together


def most_by_trying(weight_EE: npt.NDArray[np.float64], *, gpus: int, slots_per_gpu: int) -> float:
    experts = len(weight_EE)
    best = 0.0
    for gpu_E in itertools.product(range(gpus), repeat=experts):
        if max(gpu_E.count(gpu) for gpu in range(gpus)) <= slots_per_gpu:
            same_EE = np.equal.outer(gpu_E, gpu_E)
            best = max(best, float((weight_EE * same_EE).sum()) / 2)
    return best


def weights(experts: int, seed: int) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    half_EE = np.triu(rng.poisson(5 * rng.gamma(0.5, size=(experts, experts))), 1).astype(float)
    return half_EE + half_EE.T


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([(4, 2, 2), (4, 2, 3), (6, 3, 2), (6, 2, 3), (6, 2, 4), (5, 3, 2), (3, 1, 3), (4, 4, 1)]),
    seed=st.integers(0, 2**32 - 1),
    rounds=st.sampled_from([0, 1, 7, 60]),
)
def test_no_partition_has_more_pairs_together(shape: tuple[int, int, int], seed: int, rounds: int) -> None:
    experts, gpus, slots_per_gpu = shape
    weight_EE = weights(experts, seed)
    bound = most_pairs_together(weight_EE, gpus=gpus, slots_per_gpu=slots_per_gpu, rounds=rounds)
    assert bound >= most_by_trying(weight_EE, gpus=gpus, slots_per_gpu=slots_per_gpu) * (1 - 1e-12)


@pytest.mark.parametrize(("gpus", "slots_per_gpu"), [(4, 4), (4, 5)])
def test_experts_that_come_in_groups_are_bounded_nearly_exactly(gpus: int, slots_per_gpu: int) -> None:
    """Four groups of four, always together; a fifth slot holds no friend of all four."""
    group_E = np.arange(16) // 4
    weight_EE = 10.0 * np.equal.outer(group_E, group_E)
    np.fill_diagonal(weight_EE, 0.0)
    bound = most_pairs_together(weight_EE, gpus=gpus, slots_per_gpu=slots_per_gpu, rounds=120)
    assert 240 <= bound <= 240 * (1.0001 if slots_per_gpu == 4 else 1.3)


def test_more_steps_never_prove_less() -> None:
    weight_EE = weights(24, 3)
    bounds = [most_pairs_together(weight_EE, gpus=4, slots_per_gpu=6, rounds=rounds) for rounds in (0, 10, 40, 160)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.9 * bounds[0]


def test_without_any_pair_there_is_nothing() -> None:
    assert most_pairs_together(np.zeros((6, 6)), gpus=2, slots_per_gpu=3, rounds=20) == 0.0
