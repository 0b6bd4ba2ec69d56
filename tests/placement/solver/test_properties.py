"""What holds for every solution, whatever the demand; the ruler judges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from placement.baselines import BASELINES
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.problem import Objective, Problem
from placement.score import score
from placement.solution import Solution, Status
from placement.solver import solve
from placement.topology import Topology
from tests.placement.solver.judging import (
    codes,
    faults_of,
    local_bound,
    local_share,
    localises,
    worst_window,
)
from tests.placement.solver.problems import problems

ROUNDING = 1e-8
WORTH_MOVING = 1e-3
"""With a running layout a plan may be worse by this part, if it moves less."""


@settings(max_examples=80)
@given(problem=problems())
def test_every_solution_is_valid_and_within_its_bounds(problem: Problem) -> None:
    solution = solve(problem)
    assert not faults_of(problem, solution.layout)
    check_bounds(problem, solution)
    if problem.objective is Objective.TRAFFIC:
        # What it minimises is judged in traffic/test_plans.py.
        assert (
            worst_window(problem, solution.layout)
            <= max(solution.max_imbalance, problem.max_imbalance) * (1 + ROUNDING)
            or problem.dispatch is Dispatch.EVEN
        )
        return
    check_cap(problem, solution)
    check_status(problem, solution)
    check_baselines(problem, solution)
    check_notices(problem, solution)


def check_bounds(problem: Problem, solution: Solution) -> None:
    """No figure of the plan passes a bound, under the problem's very dispatch."""
    metrics = score(solution.layout, problem.demand, problem.topology, dispatch=problem.dispatch)
    bound = solution.bound
    assert bound.imbalance is not None
    assert metrics.worst_window.imbalance >= bound.imbalance * (1 - ROUNDING)
    assert set(bound.relaxation) == {
        name for name in ("local_gpu", "local_node", "imbalance") if getattr(bound, name) is not None
    }
    if problem.dispatch is Dispatch.EVEN:
        assert (bound.local_gpu, bound.local_node) == (None, None)
        return
    assert metrics.local_gpu is not None
    assert metrics.local_node is not None
    assert bound.local_gpu is not None
    assert bound.local_node is not None
    if worst_window(problem, solution.layout) <= solution.max_imbalance or not localises(problem):
        assert metrics.local_gpu <= bound.local_gpu * (1 + ROUNDING)
        assert metrics.local_node <= bound.local_node * (1 + ROUNDING)


def check_cap(problem: Problem, solution: Solution) -> None:
    """Locality keeps the cap that was asked for, or says that it cannot and keeps the one it names."""
    if not localises(problem):
        assert solution.max_imbalance == problem.max_imbalance
        assert "IMBALANCE_CAP_UNREACHABLE" not in codes(solution)
        return
    assert worst_window(problem, solution.layout) <= solution.max_imbalance * (1 + ROUNDING)
    assert solution.max_imbalance >= problem.max_imbalance
    details = [notice.detail for notice in solution.notices if notice.code == "IMBALANCE_CAP_UNREACHABLE"]
    if solution.max_imbalance == problem.max_imbalance:
        assert not details
    else:
        (detail,) = details
        assert f"{problem.max_imbalance:g}" in detail
        assert f"{solution.max_imbalance:.4f}" in detail
        assert worst_window(problem, solution.layout) > problem.max_imbalance


def check_status(problem: Problem, solution: Solution) -> None:
    """Optimal is said only when the ruler's figure equals the bound, and not held back when it does."""
    assert solution.status in (Status.OPTIMAL, Status.FEASIBLE)
    if solution.status is not Status.OPTIMAL:
        return
    assert problem.dispatch is not Dispatch.NEAREST_STATIC
    if localises(problem):
        assert local_share(problem, solution.layout) == pytest.approx(local_bound(problem, solution), rel=ROUNDING)
        if solution.max_imbalance > problem.max_imbalance:
            assert solution.max_imbalance == pytest.approx(solution.bound.imbalance, rel=ROUNDING)
    else:
        assert worst_window(problem, solution.layout) == pytest.approx(solution.bound.imbalance, rel=ROUNDING)


def check_baselines(problem: Problem, solution: Solution) -> None:
    """No baseline without duplicates is better under the same cap."""
    allowed = 1 + ROUNDING + (WORTH_MOVING if problem.current is not None else 0.0)
    ours = solution.layout
    for name, make in BASELINES.items():
        theirs = make(problem)
        if theirs.duplicated_slots():
            continue
        if not localises(problem):
            assert worst_window(problem, ours) <= worst_window(problem, theirs) * allowed, name
        elif worst_window(problem, theirs) <= solution.max_imbalance:
            our_share, their_share = local_share(problem, ours), local_share(problem, theirs)
            assert our_share is not None
            assert their_share is not None
            assert our_share * allowed >= their_share, name


def check_notices(problem: Problem, solution: Solution) -> None:
    undefined = problem.objective is Objective.LOCALITY and problem.dispatch is Dispatch.EVEN
    assert ("LOCALITY_UNDEFINED" in codes(solution)) == undefined
    assert ("PLANNED_FOR_DYNAMIC" in codes(solution)) == (problem.dispatch is Dispatch.NEAREST_STATIC)
    assert "BEST_EFFORT_PLAN" not in codes(solution)


@pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.NEAREST_STATIC])
def test_a_cap_kept_up_to_rounding_is_kept(dispatch: Dispatch) -> None:
    """Perfect balance is there, but its loads add up to 1 + 2e-16 in floating point."""
    problem = Problem(Demand.uniform([[23, 25, 37, 47, 1, 8]]), Topology(4), 4, max_imbalance=1.0, dispatch=dispatch)
    solution = solve(problem)
    assert solution.max_imbalance == 1.0
    assert "IMBALANCE_CAP_UNREACHABLE" not in codes(solution)
    assert worst_window(problem, solution.layout) == pytest.approx(1.0)
