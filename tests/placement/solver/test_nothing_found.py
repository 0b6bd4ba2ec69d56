"""A search that was stopped before it found anything has proven nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placement.demand import Demand
from placement.problem import Objective, Problem
from placement.score import score
from placement.solver import solve
from placement.solver.model.exact import Limits, best_at_prices, most_valuable, smallest_peaks
from placement.solver.model.layer import LayerNumbers
from placement.topology import Topology
from tests.placement.solver.problems import OBJECTIVES

EXPERTS, GPUS, SLOTS_PER_GPU = 8, 4, 3


def numbers() -> LayerNumbers:
    load_WE = np.arange(1, EXPERTS + 1, dtype=np.float64)[None] * 1e6
    return LayerNumbers(load_WE, np.tile(load_WE.T, (1, GPUS)), None, GPUS, SLOTS_PER_GPU)


@pytest.fixture
def no_hint() -> np.ndarray:
    return np.zeros((EXPERTS, GPUS), dtype=bool)


def test_a_stopped_search_has_no_bound(no_hint: np.ndarray) -> None:
    stopped = Limits(effort=0.0)
    ends = [
        best_at_prices(numbers(), no_hint, value_factor=1, price_W=[1], limits=stopped),
        most_valuable([numbers()], no_hint[None], cap_W=[10**9], limits=stopped),
        smallest_peaks([numbers()], no_hint[None], factor_W=[1], limits=stopped),
    ]
    for end in ends:
        if end.hosts_LEG is None:
            assert math.isinf(end.bound)
            assert not end.proven
    assert any(end.hosts_LEG is None for end in ends)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("limit_s", [0.01, 0.1, 0.5])
def test_bounds_hold_whenever_the_search_is_stopped(objective: Objective, limit_s: float) -> None:
    tokens_WLE = np.random.default_rng(3).integers(1, 1000, size=(2, 3, 10))
    problem = Problem(Demand.uniform(tokens_WLE), Topology(3), 6, objective=objective)
    solution = solve(problem, time_limit_s=limit_s)
    metrics = score(solution.layout, problem.demand, problem.topology, dispatch=problem.dispatch)
    assert metrics.local_gpu is not None
    assert solution.bound.local_gpu is not None
    assert metrics.local_gpu <= solution.bound.local_gpu + 1e-9
    assert solution.bound.imbalance is None or metrics.worst_window.imbalance >= solution.bound.imbalance - 1e-9
