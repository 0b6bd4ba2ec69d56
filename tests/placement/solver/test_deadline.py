"""A plan is always returned: when time is up, the best so far, saying so."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Objective, Problem
from placement.slots import slots_per_gpu_from_redundant
from placement.solution import Status
from placement.solver import fit, solve
from placement.solver.deadline import Deadline
from placement.topology import Topology
from tests.case_files import case, case_json
from tests.placement.solver.judging import codes, faults_of, local_share, worst_window
from tests.placement.solver.problems import OBJECTIVES


def requested(*, windows: int = 1, nodes: int = 1) -> tuple[Problem, float]:
    """The case's problem, with skewed counts, and its time limit."""
    request = case_json("L18", "request.json")
    experts, gpus = request["num_experts"], request["ep_size"]
    generator = np.random.default_rng(18)
    tokens_WLE = (generator.lognormal(0, 1, (windows, request["num_layers"], experts)) * 1000).astype(int)
    slots = slots_per_gpu_from_redundant(experts=experts, gpus=gpus, redundant=request["num_redundant"])
    return Problem(Demand.uniform(tokens_WLE), Topology(gpus, nodes), slots), request["time_limit_s"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_time_gives_a_valid_plan_with_its_gap(objective: Objective) -> None:
    problem, limit_s = requested()
    problem = replace(problem, objective=objective)
    solution = solve(problem, time_limit_s=limit_s)
    assert not faults_of(problem, solution.layout)
    (notice,) = [notice for notice in solution.notices if notice.code == case("L18")["expect"]["error_code"]]
    worst = worst_window(problem, solution.layout)
    assert f"imbalance {worst:.4f}" in notice.detail
    assert solution.bound.imbalance is not None
    assert 1 <= solution.bound.imbalance <= worst
    if objective is Objective.LOCALITY:
        share = local_share(problem, solution.layout)
        assert share is not None
        assert solution.bound.local_gpu is not None
        assert share <= solution.bound.local_gpu
        assert f"local_gpu {share:.4f}" in notice.detail
        assert worst <= solution.max_imbalance * (1 + 1e-9)


@pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.EVEN])
def test_several_windows_and_nodes_without_time(dispatch: Dispatch) -> None:
    problem, limit_s = requested(windows=3, nodes=4)
    problem = replace(problem, local_scope=LocalScope.NODE, dispatch=dispatch)
    solution = solve(problem, time_limit_s=limit_s)
    assert not faults_of(problem, solution.layout)
    assert "BEST_EFFORT_PLAN" in codes(solution)


def test_a_running_layout_without_time() -> None:
    problem, limit_s = requested()
    problem = replace(problem, objective=Objective.BALANCE)
    running = solve(problem, time_limit_s=limit_s).layout
    solution = solve(replace(problem, current=running), time_limit_s=limit_s)
    assert not faults_of(replace(problem, current=running), solution.layout)
    assert "BEST_EFFORT_PLAN" in codes(solution)
    assert worst_window(problem, solution.layout) <= worst_window(problem, running) * (1 + 1e-3)


def test_time_enough_needs_no_notice() -> None:
    problem = Problem(Demand.uniform([[5, 3, 2, 1]]), Topology(2), 3)
    solution = solve(problem, time_limit_s=600.0)
    assert "BEST_EFFORT_PLAN" not in codes(solution)
    assert solution.status is Status.OPTIMAL


def test_fit_without_time_says_so() -> None:
    """The first plan comes back; it is not looked further."""
    problem, limit_s = requested()
    slots_per_gpu, solution = fit(problem, local_target=0.6, time_limit_s=limit_s)
    assert not faults_of(replace(problem, slots_per_gpu=slots_per_gpu), solution.layout)
    share = local_share(replace(problem, slots_per_gpu=slots_per_gpu), solution.layout)
    assert share is not None
    assert (solution.status is Status.TARGET_MISSED) == (share < 0.6)
    assert "BEST_EFFORT_PLAN" in codes(solution)


@pytest.mark.parametrize(("limit_s", "left_s", "fits"), [(0.5, 0.4, True), (0.5, 0.01, False), (None, None, True)])
def test_a_bound_at_the_end_fits_into_what_is_left(limit_s: float | None, left_s: float | None, fits: bool) -> None:
    # By name: the package has a function of the same name.
    module = importlib.import_module("placement.solver.solving")
    effort = module._Effort(seed=0, time_limit_s=limit_s, threads=1, exact_seconds=None)
    usual_s = module.BOUND_SECONDS if limit_s is None else module.BOUND_PART * limit_s
    assert effort.bound_s(Deadline.after(left_s)) == (usual_s if fits else 0.0)
