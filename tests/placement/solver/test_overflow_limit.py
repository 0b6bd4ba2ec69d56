"""A cap on overflow: kept where it can be, verified by the ruler, refused where it is proven impossible."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption, Infeasible
from placement.layout import Layout, layout_from_hosts
from placement.problem import Objective, Problem
from placement.score import score
from placement.solution import Status
from placement.solver import fit, solve, solve_within_shares
from placement.topology import Topology
from tests.placement.bounds.brute_force import layouts_without_duplicates
from tests.placement.bounds.tiny_problems import tiny_problem
from tests.placement.solver.judging import codes, faults_of, planned_dispatch
from tests.placement.solver.problems import problems

UNREACHABLE = "OVERFLOW_CAP_UNREACHABLE"


def overflow(problem: Problem, layout: Layout) -> float:
    """Return the worst window's overflow share by the ruler."""
    metrics = score(
        layout,
        problem.demand,
        problem.topology,
        dispatch=planned_dispatch(problem),
        capacity_factor=problem.capacity_factor,
    )
    return max(window.overflow_share for window in metrics.windows)


def two_layers(*, max_imbalance: float = 1.5) -> Problem:
    """A large layer that balances and a small one in which locality and balance are at odds."""
    demand = Demand.uniform([[[900, 880, 860, 840, 820, 800, 780, 760], [90, 30, 25, 20, 10, 10, 5, 5]]])
    return Problem(demand, Topology(4), 3, max_imbalance=max_imbalance)


def test_a_limit_that_does_not_bind_changes_nothing() -> None:
    free = two_layers()
    limited = replace(free, max_overflow=1.0)
    assert solve(limited).layout == solve(free).layout


def test_a_limit_that_binds_is_kept_and_costs_local_share() -> None:
    problem = replace(two_layers(), capacity_factor=1.05)
    free = solve(problem)
    assert overflow(problem, free.layout) > 0.001
    limited = replace(problem, max_overflow=0.001)
    kept = solve(limited)
    assert overflow(limited, kept.layout) <= 0.001
    assert UNREACHABLE not in codes(kept)


def test_what_is_proven_impossible_is_refused_with_what_would_do() -> None:
    demand = Demand.uniform([[70, 10, 10, 10]])
    problem = Problem(demand, Topology(4), 1, max_imbalance=4, max_overflow=0.1)
    with pytest.raises(Infeasible, match=r"layer 0 the 1 most loaded experts .* at least 0\.3875 overflows") as caught:
        solve(problem)
    assert caught.value.remedies == (
        "allow --max-overflow 0.3875 or more",
        "raise --capacity-factor to 2.4 or more",
        "give 2 slots per GPU or more",
    )
    assert (
        overflow(replace(problem, max_overflow=0.3875), solve(replace(problem, max_overflow=0.3875)).layout) <= 0.3875
    )


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_limit_is_a_share(value: float) -> None:
    with pytest.raises(BadOption, match="max_overflow"):
        replace(two_layers(), max_overflow=value)


@given(problems(), st.sampled_from([0.0, 0.01, 0.1, 0.3]), st.sampled_from([1.0, 1.25, 1.5]))
@settings(max_examples=40, deadline=None)
def test_every_plan_keeps_the_limit_or_says_so(problem: Problem, most: float, factor: float) -> None:
    problem = replace(problem, max_overflow=most, capacity_factor=factor)
    try:
        solution = solve(problem, exact_seconds=0.2)
    except Infeasible:
        return
    assert faults_of(problem, solution.layout) == []
    kept = overflow(problem, solution.layout) <= most + 1e-8
    assert kept == (UNREACHABLE not in codes(solution))
    assert kept or solution.status is Status.FEASIBLE


def least_overflow(problem: Problem) -> float:
    """Return the smallest overflow of the worst window that any layout has under the cap on imbalance."""
    rows = layouts_without_duplicates(problem.demand.experts, problem.topology, problem.slots_per_gpu)
    least = float("inf")
    for chosen in itertools.product(rows, repeat=problem.demand.layers):
        layout = layout_from_hosts(chosen, experts=problem.demand.experts)
        metrics = score(
            layout,
            problem.demand,
            problem.topology,
            dispatch=problem.dispatch,
            capacity_factor=problem.capacity_factor,
        )
        if metrics.worst_window.imbalance <= problem.max_imbalance + 1e-9:
            least = min(least, max(window.overflow_share for window in metrics.windows))
    return least


def test_refusals_are_right_and_what_is_possible_is_mostly_found() -> None:
    """Against every layout: a refusal is never wrong; the search may miss a limit that only few layouts keep."""
    missed = tried = 0
    for seed in range(40):
        tiny = tiny_problem(seed)
        rows = len(layouts_without_duplicates(tiny.demand.experts, tiny.topology, tiny.slots_per_gpu))
        if tiny.dispatch is Dispatch.NEAREST_STATIC or rows**tiny.demand.layers > 700:
            continue
        problem = Problem(
            tiny.demand,
            tiny.topology,
            tiny.slots_per_gpu,
            dispatch=tiny.dispatch,
            max_imbalance=tiny.topology.gpus,
            capacity_factor=1.1,
        )
        least = least_overflow(problem)
        if least <= 0.97:
            problem = replace(problem, max_overflow=least + 0.02)
            tried += 1
            missed += UNREACHABLE in codes(solve(problem))  # never Infeasible
        if least > 0.02:
            impossible = replace(problem, max_overflow=least - 0.02)
            with suppress(Infeasible):
                assert UNREACHABLE in codes(solve(impossible))
    assert tried >= 12
    assert missed <= tried // 10


def test_the_limit_holds_within_a_budget_of_moves_or_is_said_to_be_out_of_reach() -> None:
    problem = replace(two_layers(), capacity_factor=1.05, max_overflow=0.001)
    solution, within = solve_within_shares(problem, [0.0, 0.5, 1.0])
    for each in (solution, *within):
        assert (overflow(problem, each.layout) <= 0.001 + 1e-8) == (UNREACHABLE not in codes(each))


def test_the_running_layout_stays_only_where_it_keeps_the_limit() -> None:
    problem = replace(two_layers(), capacity_factor=1.05)
    running = solve(problem).layout
    limited = replace(problem, max_overflow=0.001, current=running)
    assert overflow(limited, solve(limited).layout) <= 0.001


def test_balance_keeps_the_limit_too() -> None:
    problem = replace(two_layers(), capacity_factor=1.02, max_overflow=0.0005, objective=Objective.BALANCE)
    solution = solve(problem)
    assert (overflow(problem, solution.layout) <= 0.0005 + 1e-8) == (UNREACHABLE not in codes(solution))


def test_fit_goes_on_past_slots_with_which_the_limit_cannot_be_kept() -> None:
    demand = Demand.uniform([[70, 10, 10, 10]])
    problem = Problem(demand, Topology(4), 1, max_imbalance=4, max_overflow=0.0, capacity_factor=1.25)
    slots, solution = fit(problem, local_target=0.1)
    assert slots == 2
    assert overflow(replace(problem, slots_per_gpu=slots), solution.layout) <= 1e-8
    with pytest.raises(Infeasible):
        fit(problem, local_target=0.1, most_slots_per_gpu=1)
