"""Same input, same seed: the same bytes, whatever runs the layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.problem import Problem
from placement.solution import Solution
from placement.solver import solve
from placement.topology import Topology
from tests.case_files import case, case_json
from tests.placement.solver.problems import OBJECTIVES, problems
from tests.placement.solver.test_moves import KINDS, example


def said(solution: Solution) -> tuple[object, ...]:
    """Everything of a solution but the time it took."""
    layout = solution.layout.slot_to_expert_LP.tobytes()
    return layout, solution.status, solution.bound, solution.max_imbalance, solution.notices


@settings(max_examples=25)
@given(problem=problems(), seed=st.integers(0, 3))
def test_twice_the_same(problem: Problem, seed: int) -> None:
    assert said(solve(problem, seed=seed)) == said(solve(problem, seed=seed))


@settings(max_examples=15)
@given(problem=problems())
def test_threads_change_nothing(problem: Problem) -> None:
    assert said(solve(problem, threads=1)) == said(solve(problem, threads=2))


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_threads_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch for all layers, then a batch per layer on two threads."""
    problem = example(kind)
    together = solve(problem)
    monkeypatch.setattr("placement.solver.batches.BATCH_CELLS", 1)
    assert said(together) == said(solve(problem, threads=2))


def test_the_case_of_counts_recorded_four_times() -> None:
    """P04, under both objectives; the factor is the file's own."""
    one, four = (case_json("P04", name)["logical_count"] for name in ("a.json", "b.json"))
    assert np.array_equal(np.array(one) * case("P04")["expect"]["oracle"]["factor"], four)
    for objective in OBJECTIVES:
        plans = [solve(Problem(Demand.uniform(each), Topology(4), 3, objective=objective)) for each in (one, four)]
        assert plans[0].layout.hash == plans[1].layout.hash


@settings(max_examples=25)
@given(problem=problems(), factor=st.sampled_from([2, 4, 7]))
def test_counts_recorded_several_times_give_the_same_plan(problem: Problem, factor: int) -> None:
    """Data-parallel ranks may each record the same tokens; a plan depends on shares alone."""
    more = replace(problem.demand, tokens_WLSE=problem.demand.tokens_WLSE * factor)
    plans = [solve(problem), solve(replace(problem, demand=more))]
    assert plans[0].layout == plans[1].layout
    assert plans[0].max_imbalance == pytest.approx(plans[1].max_imbalance)


@pytest.mark.parametrize("kind", KINDS)
def test_four_times_the_counts_on_larger_layers(kind: str) -> None:
    problem = example(kind)
    more = replace(problem.demand, tokens_WLSE=problem.demand.tokens_WLSE * 4)
    assert solve(problem).layout == solve(replace(problem, demand=more)).layout


def test_ties_do_not_depend_on_the_factor() -> None:
    """A single token leaves nearly everything open: what the flow and CP-SAT then choose is the same for two."""
    for tokens_SE in ([[0, 0, 0], [0, 0, 1]], [[0] * 6, [0] * 6, [0] * 6, [0] * 5 + [1]]):
        one = np.array([[tokens_SE]])
        slots = len(tokens_SE[0]) // 2 + 1
        plans = [
            solve(Problem(Demand(one * factor, "measured", ("all",)), Topology(len(tokens_SE)), slots))
            for factor in (1, 2, 1000)
        ]
        assert len({plan.layout.hash for plan in plans}) == 1
