"""Plans show the strongest bound that is affordable, also where it is not counting's."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from placement.bounds import gpu_contents_bound, imbalance_bound, small_imbalance_bound
from placement.demand import Demand
from placement.problem import Objective, Problem
from placement.solver import solve
from placement.topology import Topology
from tests.placement.solver.judging import worst_window


@pytest.mark.parametrize("objective", [Objective.BALANCE, Objective.LOCALITY])
def test_windows_that_no_layout_suits_both(objective: Objective) -> None:
    """Each window alone can be even, so counting says 1; searching layers says 1.125. The cap of 1 is out of reach."""
    demand = Demand.uniform([[[4, 2, 2]], [[2, 4, 2]]])
    problem = Problem(demand, Topology(2), 2, objective=objective, max_imbalance=1.0)
    assert imbalance_bound(demand, problem.topology, 2, problem.dispatch).imbalance == 1.0
    solution = solve(problem, exact_seconds=0.0)
    assert solution.bound.imbalance == pytest.approx(1.125)
    assert solution.bound.relaxation["imbalance"].startswith("layers searched")
    assert worst_window(problem, solution.layout) == pytest.approx(1.25)


def test_contents_of_one_gpu_where_layers_are_too_large_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """9 experts on 9 GPUs x 4 slots."""
    # By name: the package has a function of the same name.
    monkeypatch.setattr(importlib.import_module("placement.solver.solving"), "BOUND_SECONDS", 0.5)
    tokens_WLE = np.random.default_rng(7).gamma(1.0, 1000, size=(6, 1, 9)).astype(int) + 1
    problem = Problem(Demand.uniform(tokens_WLE), Topology(9), 4, objective=Objective.BALANCE)
    assert small_imbalance_bound(problem, effort_s=60.0) is None
    solution = solve(problem, exact_seconds=0.0)
    found = gpu_contents_bound(problem, effort_s=0.5)
    assert found is not None
    assert solution.bound.imbalance == found.value
    assert solution.bound.relaxation["imbalance"] == found.relaxation
    assert worst_window(problem, solution.layout) >= found.value


def test_no_time_for_it_leaves_what_counting_proves() -> None:
    tokens_WLE = np.random.default_rng(7).gamma(1.0, 1000, size=(6, 1, 9)).astype(int) + 1
    problem = Problem(Demand.uniform(tokens_WLE), Topology(9), 4, objective=Objective.BALANCE)
    bound = solve(problem, time_limit_s=0.0).bound
    assert bound.relaxation["imbalance"].startswith("counting")
