"""How a search goes, as it is told: whole plans, proven bounds, and at the end what is handed back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.hardware import Sends
from placement.problem import LocalScope, Objective, Problem
from placement.solver import Figure, Standing, fit, solve
from placement.solver.course import Course, Stage
from placement.topology import Topology
from tests.placement.solver.judging import local_share, worst_window
from tests.placement.solver.problems import problems
from tests.placement.solver.step_time.test_counted import problem as step_problem
from tests.placement.solver.step_time.test_counted import seconds
from tests.placement.solver.traffic.problems import grouped_tokens, problem_of

TOLERANCE = 1e-9


def course(*, cap: float | None = 1.1, figure: Figure = Figure.LOCAL_GPU) -> tuple[Course, list[Standing]]:
    told: list[Standing] = []
    return Course(told.append, figure, cap, 4), told


def test_a_better_plan_within_the_cap_is_told() -> None:
    made, told = course()
    made.see_figure(0.5, imbalance=1.05)
    made.see_figure(0.6, imbalance=1.1)
    assert [(each.best, each.imbalance) for each in told] == [(0.5, 1.05), (0.6, 1.1)]


def test_a_plan_above_the_cap_is_none_but_says_how_flat_it_is() -> None:
    made, told = course()
    made.see_figure(0.9, imbalance=1.5)
    made.see_figure(0.8, imbalance=1.3)
    made.see_figure(0.7, imbalance=1.4)
    assert [(each.best, each.imbalance) for each in told] == [(None, 1.5), (None, 1.3)]


def test_a_worse_plan_is_told_only_where_the_search_goes_on_with_it() -> None:
    made, told = course(figure=Figure.GPUS_PER_TOKEN)
    made.see_figure(0.8, imbalance=1.0)
    made.see_figure(0.9, imbalance=1.0)
    assert [each.best for each in told] == [0.8]
    made.settle_figure(0.9, imbalance=1.0, stage=Stage.MOVES)
    assert (told[-1].best, told[-1].stage) == (0.9, Stage.MOVES)


def test_the_same_is_not_told_twice() -> None:
    made, told = course(cap=None, figure=Figure.IMBALANCE)
    for _ in range(2):
        made.prove_figure(1.0)
        made.settle_figure(1.2, imbalance=1.2, stage=Stage.SEARCH)
    assert [(each.best, each.bound) for each in told] == [(None, 1.0), (1.2, 1.0)]


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_watching_changes_nothing_and_ends_with_what_is_handed_back(problem: Problem) -> None:
    told: list[Standing] = []
    watched = solve(problem, watch=told.append)
    assert watched.layout.hash == solve(problem).layout.hash
    last = told[-1]
    if problem.dispatch is not Dispatch.NEAREST_STATIC:  # planned for its expectation, judged by its table
        judged = last.best if last.figure is Figure.IMBALANCE else last.imbalance
        assert judged == pytest.approx(worst_window(problem, watched.layout), rel=1e-6)
    if last.figure.higher_is_better:
        assert last.best == pytest.approx(local_share(problem, watched.layout), abs=1e-6)
        proven = watched.bound.local_node if problem.local_scope is LocalScope.NODE else watched.bound.local_gpu
        assert last.cap == watched.max_imbalance
    else:
        proven = watched.bound.imbalance
    assert last.bound == proven
    for standing in told:
        require_bounded(standing)
    for before, after in pairwise(told):
        if after.stage is Stage.SEARCH and before.best is not None and after.best is not None:
            better = after.best >= before.best if after.figure.higher_is_better else after.best <= before.best
            assert better or after.cap != before.cap


def require_bounded(standing: Standing) -> None:
    """No plan passes what is proven at the same time."""
    if standing.best is None or standing.bound is None:
        return
    if standing.figure.higher_is_better:
        assert standing.best <= standing.bound * (1 + TOLERANCE)
    else:
        assert standing.best >= standing.bound * (1 - TOLERANCE)


def test_numbers_of_slots_are_told_one_after_the_other() -> None:
    counts_WLE = np.random.default_rng(5).gamma(0.7, 300.0, (1, 3, 16)).astype(int) + 1
    problem = Problem(Demand.uniform(counts_WLE), Topology(4), 4, max_imbalance=1.0)
    told: list[Standing] = []
    shares: list[float] = []
    slots, _ = fit(problem, local_target=0.55, watch=told.append, progress=shares.append)
    tried = [standing.slots_per_gpu for standing in told]
    assert tried == sorted(tried)
    assert tried[-1] == slots
    assert shares == sorted(shares)
    assert shares[-1] <= 1


def test_copies_are_told_once_there_is_a_plan_for_locality() -> None:
    problem = problem_of(grouped_tokens(seed=0, count=200), gpus=4, slots_per_gpu=5, nodes=1)
    problem = replace(problem, objective=Objective.TRAFFIC)
    told: list[Standing] = []
    solution = solve(problem, watch=told.append)
    assert {standing.figure for standing in told} == {Figure.GPUS_PER_TOKEN}
    assert (told[-1].bound, told[-1].cap) == (solution.bound.gpus_per_token, solution.max_imbalance)
    for standing in told:
        require_bounded(standing)


def test_predicted_times_fall_from_the_fastest_start_to_the_plan() -> None:
    problem = step_problem()
    assert problem.step is not None
    assert problem.step.hardware.all_to_all(problem.step.phase).sends is Sends.PER_GPU
    told: list[Standing] = []
    solution = solve(problem, watch=told.append)
    assert solution.layout.hash == solve(problem).layout.hash
    best = [standing.best for standing in told]
    assert None not in best
    assert best == sorted(best, reverse=True)  # type: ignore[type-var]
    assert best[-1] == pytest.approx(seconds(problem, solution.layout))
    assert told[-1].bound == solution.bound.moe_layer_s
    for standing in told:
        require_bounded(standing)
