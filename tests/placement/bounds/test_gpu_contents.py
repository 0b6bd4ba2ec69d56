"""What one GPU can hold: never passed by any layout, for the worst window and for a mean over windows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placement.bounds import GpuContentsBound, gpu_contents_bound, imbalance_bound, small_imbalance_bound, tight_bounds
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.problem import Problem
from placement.topology import Topology
from tests.placement.bounds.brute_force import Reachable, reachable
from tests.placement.bounds.test_small import with_equal_replicas

PROBLEMS = 160
ROUNDING = 1e-9


def problems() -> list[tuple[Problem, Reachable]]:
    found: list[tuple[Problem, Reachable]] = []
    seed = 0
    while len(found) < PROBLEMS:
        tiny = with_equal_replicas(seed)
        seed += 1
        if tiny is not None and tiny.topology.gpus > 1:
            problem = Problem(tiny.demand, tiny.topology, tiny.slots_per_gpu, dispatch=tiny.dispatch)
            found.append((problem, reachable(tiny)))
    return found


@pytest.fixture(scope="module")
def tried() -> list[tuple[Problem, Reachable, GpuContentsBound]]:
    done = []
    for problem, layouts in problems():
        bound = gpu_contents_bound(problem)
        assert bound is not None
        done.append((problem, layouts, bound))
    return done


def passed(layouts: Reachable, value: float) -> bool:
    return layouts.imbalance < value * (1 - ROUNDING)


def test_worst_window_is_never_below(tried: list[tuple[Problem, Reachable, GpuContentsBound]]) -> None:
    assert not [index for index, (_, layouts, bound) in enumerate(tried) if passed(layouts, bound.value)]


def test_a_bound_a_little_larger_is_passed(tried: list[tuple[Problem, Reachable, GpuContentsBound]]) -> None:
    """Negative control: 2 % more is refuted by layouts of many problems, so the test above can fail."""
    assert sum(passed(layouts, bound.value * 1.02) for _, layouts, bound in tried) >= 40


def test_the_mean_at_the_prices_is_never_below(tried: list[tuple[Problem, Reachable, GpuContentsBound]]) -> None:
    """The value is proven for the priced mean, not only for the worst window."""
    for problem, layouts, bound in tried:
        price_W = bound.window_price_W[problem.demand.tokens_WLE.any(axis=(1, 2))]
        assert price_W.sum() == pytest.approx(1.0)
        assert (layouts.imbalance_XW @ price_W).min() >= bound.value * (1 - ROUNDING)


def test_sum_of_the_windows_largest_loads(tried: list[tuple[Problem, Reachable, GpuContentsBound]]) -> None:
    """Weights in proportion to tokens: the sum over windows of the largest loads, over the sum of the means."""
    met = 0
    for problem, layouts, _ in tried:
        tokens_W = problem.demand.tokens_WLE.sum(axis=(1, 2)).astype(float)
        bound = gpu_contents_bound(problem, window_price_W=tokens_W, most_rounds=1)
        assert bound is not None
        busy_W = tokens_W[tokens_W > 0]
        smallest = (layouts.imbalance_XW @ busy_W).min() / busy_W.sum()
        assert bound.value <= smallest * (1 + ROUNDING)
        met += bound.value > smallest * 0.98
    assert met >= 30


def test_says_more_than_counting_where_windows_differ(
    tried: list[tuple[Problem, Reachable, GpuContentsBound]],
) -> None:
    stronger = 0
    for problem, _, bound in tried:
        counted = imbalance_bound(problem.demand, problem.topology, problem.slots_per_gpu, problem.dispatch)
        stronger += bound.value > counted.imbalance * 1.005
    assert stronger >= 5


def test_searching_layers_is_never_weaker() -> None:
    """Both at the same prices; the search begins with this bound."""
    for problem, _ in problems()[:60]:
        first = gpu_contents_bound(problem, most_rounds=1)
        searched = small_imbalance_bound(problem, effort_s=1.0)
        assert first is not None
        assert searched is not None
        assert searched.value >= first.value * (1 - 1e-5)


def test_two_windows_that_no_content_suits() -> None:
    """Expert 0 is hot in one window, expert 1 in the other; slots are too few to spread either.

    2 GPUs x 1 slot: a GPU holds one expert, 9 / 5 of the mean in one window and 1 / 5 in the other.
    """
    problem = Problem(Demand.uniform([[[9, 1]], [[1, 9]]]), Topology(2), 1)
    bound = gpu_contents_bound(problem)
    assert bound is not None
    assert bound.value == pytest.approx(1.8)
    assert bound.value_L.tolist() == pytest.approx([1.8])


def test_used_where_layers_are_too_large_to_search() -> None:
    """9 experts on 9 GPUs x 4 slots have more counts x contents than are tabled."""
    tokens_WLE = np.random.default_rng(7).gamma(1.0, 1000, size=(12, 2, 9)).astype(int) + 1
    problem = Problem(Demand.uniform(tokens_WLE), Topology(9), 4)
    assert small_imbalance_bound(problem, effort_s=60.0) is None
    found = tight_bounds(problem, effort_s=10.0)
    assert isinstance(found.imbalance, GpuContentsBound)
    assert found.bound.imbalance == found.imbalance.value > 1.001
    assert found.bound.relaxation["imbalance"] == found.imbalance.relaxation


class TestAbsent:
    def test_replicas_that_differ_in_load(self) -> None:
        sources = Demand(np.ones((1, 1, 2, 3), dtype=int), "measured", ("all",))
        problem = Problem(sources, Topology(2), 2)
        assert gpu_contents_bound(problem) is None
        assert gpu_contents_bound(replace(problem, dispatch=Dispatch.EVEN)) is not None
        assert gpu_contents_bound(Problem(Demand.uniform([[1, 1, 1]]), Topology(2, 2), 2)) is None

    def test_static_dispatch(self) -> None:
        problem = Problem(Demand.uniform([[1, 1, 1]]), Topology(2), 2, dispatch=Dispatch.NEAREST_STATIC)
        assert gpu_contents_bound(problem) is None

    def test_one_gpu(self) -> None:
        assert gpu_contents_bound(Problem(Demand.uniform([[1, 2]]), Topology(1), 2)) is None

    def test_too_little_effort_or_too_many_contents(self) -> None:
        assert gpu_contents_bound(Problem(Demand.uniform([[1] * 8]), Topology(8), 3), effort_s=1e-4) is None
        assert gpu_contents_bound(Problem(Demand.uniform([[1] * 64]), Topology(8), 24), effort_s=1e4) is None
