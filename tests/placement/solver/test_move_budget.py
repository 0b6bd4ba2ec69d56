"""A budget of moves is kept, whatever it costs; what it buys grows with it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.baselines import plan_eplb, trivial
from placement.demand import Demand
from placement.diff import diff
from placement.dispatch import Dispatch
from placement.errors import BadOption, Infeasible
from placement.layout import Layout
from placement.pareto import MovePoint, move_points
from placement.problem import LocalScope, Objective, Problem
from placement.solution import Solution, Status
from placement.solver import fit, solve, solve_within_shares
from placement.topology import Topology
from tests.placement.solver.judging import codes, faults_of, local_share, measured, worst_window
from tests.placement.solver.problems import OBJECTIVES, problems

ROUNDING = 1e-8
WORTH_MOVING = 1e-3


def moved(problem: Problem, layout: Layout) -> int:
    before = problem.current or trivial(problem)
    return diff(before, layout, moe_layers=problem.demand.moe_layers).moved_slots


def traffic(seed: int, *, windows: int = 1, layers: int = 12, sources: int = 1, experts: int = 32) -> Demand:
    """Skewed demand, other hot experts in every layer, and a dense layer in front."""
    generator = np.random.default_rng(seed)
    heat_LSE = generator.lognormal(0, 0.8, (layers, sources, experts))
    tokens_WLSE = (heat_LSE * generator.lognormal(0, 0.25, (windows, layers, sources, experts)) * 1000).astype(int)
    tokens_WLSE[:, 0] = 0
    names = tuple(f"window {index}" for index in range(windows))
    return Demand(tokens_WLSE, "measured" if sources > 1 else "uniform", names)


KINDS = {
    "locality": (Topology(4), 12, Objective.LOCALITY, LocalScope.GPU, 1),
    "balance": (Topology(8), 5, Objective.BALANCE, LocalScope.GPU, 1),
    "locality of nodes": (Topology(6, 3), 8, Objective.LOCALITY, LocalScope.NODE, 1),
    "locality of measured sources": (Topology(4), 12, Objective.LOCALITY, LocalScope.GPU, 4),
}


@cache
def drifted(kind: str) -> Problem:
    """Two windows of new traffic on a layout that was planned for another window."""
    topology, slots_per_gpu, objective, scope, sources = KINDS[kind]
    before, after = traffic(1, sources=sources), traffic(2, windows=2, sources=sources)
    problem = Problem(before, topology, slots_per_gpu, objective=objective, local_scope=scope)
    return replace(problem, demand=after, current=solve(problem, exact_seconds=0).layout)


SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)


@cache
def within_shares(kind: str) -> tuple[Solution, tuple[Solution, ...]]:
    return solve_within_shares(drifted(kind), SHARES)


@settings(max_examples=60)
@given(problem=problems(), budget=st.integers(0, 8))
def test_the_budget_is_never_exceeded(problem: Problem, budget: int) -> None:
    limited = replace(problem, max_moved_slots=budget)
    solution = solve(limited)
    assert not faults_of(limited, solution.layout)
    assert moved(problem, solution.layout) <= budget
    assert worst_window(problem, solution.layout) >= solution.bound.imbalance * (1 - ROUNDING)
    if problem.objective is Objective.LOCALITY and problem.dispatch is not Dispatch.EVEN:
        assert worst_window(problem, solution.layout) <= solution.max_imbalance * (1 + ROUNDING)
        bound = solution.bound.local_node if problem.local_scope is LocalScope.NODE else solution.bound.local_gpu
        assert local_share(problem, solution.layout) <= bound * (1 + ROUNDING)


def test_without_a_current_layout_moves_count_from_the_trivial_one() -> None:
    problem = Problem(traffic(3), Topology(4), 12, max_moved_slots=0)
    solution = solve(problem)
    assert moved(problem, solution.layout) == 0
    assert 0 < moved(problem, solve(replace(problem, max_moved_slots=25)).layout) <= 25


@pytest.mark.parametrize("kind", KINDS)
def test_no_moves_leave_the_running_layout(kind: str) -> None:
    problem = drifted(kind)
    solution = solve(replace(problem, max_moved_slots=0), exact_seconds=0)
    assert solution.layout == problem.current
    assert "MOVE_BUDGET_BINDS" in codes(solution)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_gained_grows_with_the_budget(kind: str) -> None:
    problem = drifted(kind)
    free, within = within_shares(kind)
    budgets = [int(share * moved(problem, free.layout)) for share in SHARES]
    for budget, solution in zip(budgets, within, strict=True):
        assert moved(problem, solution.layout) <= budget
    assert within[-1].layout == free.layout
    nothing, tenth, *_, everything = (measured(problem, solution.layout) for solution in within)
    # A tenth of the moves buys more than a tenth of the gain.
    if problem.objective is Objective.BALANCE:
        gain, whole = (nothing.worst_window.imbalance - each.worst_window.imbalance for each in (tenth, everything))
        assert gain > 0.3 * whole > 0
    else:
        worst = [worst_window(problem, solution.layout) for solution in within]
        assert all(now <= max(free.max_imbalance, before) * (1 + ROUNDING) for before, now in pairwise(worst))
        shares = [
            local_share(problem, each.layout)
            for each, flat in zip(within, worst, strict=True)
            if flat <= free.max_imbalance * (1 + ROUNDING)
        ]
        assert shares == sorted(set(shares))
        assert len(shares) >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_that_is_large_enough_changes_nothing(kind: str) -> None:
    problem, (free, _) = drifted(kind), within_shares(kind)
    ample = solve(replace(problem, max_moved_slots=moved(problem, free.layout)))
    assert ample.layout == free.layout
    assert "MOVE_BUDGET_BINDS" not in codes(ample)


def test_unchanged_demand_moves_nothing_whatever_the_budget() -> None:
    problem = Problem(traffic(4), Topology(4), 12)
    running = replace(problem, current=solve(problem).layout)
    for budget in (None, 0, 50):
        solution = solve(replace(running, max_moved_slots=budget))
        assert moved(running, solution.layout) == 0
        assert "MOVE_BUDGET_BINDS" not in codes(solution)


def test_a_cap_that_the_budget_cannot_mend_is_told_with_both_figures() -> None:
    problem = replace(drifted("locality"), max_moved_slots=2)
    free = solve(replace(problem, max_moved_slots=None))
    solution = solve(problem)
    within, without = worst_window(problem, solution.layout), worst_window(problem, free.layout)
    assert without <= problem.max_imbalance < within
    # It is as flat as the moves make it: flatter than what runs.
    assert within < worst_window(problem, problem.current)
    (notice,) = (each for each in solution.notices if each.code == "MOVE_BUDGET_BINDS")
    assert f"{within:.4f}" in notice.detail
    assert f"{without:.4f}" in notice.detail
    assert "at most 2 slots" in notice.detail
    # The other notice would say that no layout keeps the cap.
    assert "IMBALANCE_CAP_UNREACHABLE" not in codes(solution)
    assert solution.status is Status.FEASIBLE


def test_what_a_gpu_holds_twice_moves_in_any_case() -> None:
    demand = traffic(5)
    problem = Problem(demand, Topology(4), 12, objective=Objective.BALANCE)
    twice = np.tile(np.arange(48) % 32, (demand.layers, 1))
    # GPU 0 holds the experts 0 to 11; now expert 0 in two slots. GPU 2 holds expert 11 too.
    twice[3, 11] = 0
    twice[3, 43] = 11
    current = Layout(twice.astype(np.int32), gpus=4, experts=32)
    running = replace(problem, current=current)
    with pytest.raises(Infeasible, match="holds 1 experts twice"):
        solve(replace(running, max_moved_slots=0))
    allowed = solve(replace(running, max_moved_slots=1))
    assert moved(running, allowed.layout) == 1
    assert not faults_of(running, allowed.layout)


def test_an_engines_own_layout_is_mended_within_the_budget() -> None:
    before, after = traffic(6, experts=16), traffic(7, experts=16)
    problem = Problem(before, Topology(4), 6, objective=Objective.BALANCE)
    running = replace(problem, demand=after, current=plan_eplb(problem).layout)
    _, within = solve_within_shares(running, (0.0, 0.3))
    now = worst_window(running, running.current)
    assert all(not faults_of(running, each.layout) for each in within)
    assert worst_window(running, within[1].layout) < now


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(8))
def test_small_problems_reach_the_best_of_all_layouts(objective: Objective, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = [
        sum(held, ()) for held in product(combinations(range(4), 3), repeat=2) if set(sum(held, ())) == set(range(4))
    ]
    tokens = generator.integers(1, 50, (1, 2, 1, 4))
    drawn = [rows[each] for each in generator.integers(len(rows), size=2)]
    running = Layout(np.array(drawn, np.int32), gpus=2, experts=4)
    demand = Demand(tokens, "uniform", ("all",))
    problem = Problem(
        demand, Topology(2), 3, objective=objective, max_imbalance=1.3, current=running, max_moved_slots=2
    )
    layouts = [Layout(np.array(pair, np.int32), gpus=2, experts=4) for pair in product(rows, repeat=2)]
    allowed = [layout for layout in layouts if moved(problem, layout) <= 2]
    flattest = min(worst_window(problem, layout) for layout in allowed)
    ours = solve(problem).layout
    if objective is Objective.BALANCE:
        assert worst_window(problem, ours) <= flattest * (1 + WORTH_MOVING)
        return
    cap = max(1.3, flattest) * (1 + ROUNDING)
    most_local = max(local_share(problem, layout) for layout in allowed if worst_window(problem, layout) <= cap)
    assert worst_window(problem, ours) <= cap
    assert local_share(problem, ours) >= most_local * (1 - WORTH_MOVING)


def test_equal_runs_give_equal_layouts() -> None:
    problem = replace(drifted("locality"), max_moved_slots=40)
    assert solve(problem).layout == solve(problem, threads=2).layout


def test_a_deadline_keeps_the_budget() -> None:
    problem = replace(drifted("locality"), max_moved_slots=10)
    solution = solve(problem, time_limit_s=1e-6)
    assert moved(problem, solution.layout) <= 10
    assert "BEST_EFFORT_PLAN" in codes(solution)


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(BadOption, match="max_moved_slots is -1"):
        replace(drifted("balance"), max_moved_slots=-1)


def test_a_budget_needs_a_number_of_slots() -> None:
    with pytest.raises(BadOption, match="number of slots is to be found"):
        fit(Problem(traffic(3), Topology(4), 12, max_moved_slots=5), local_target=0.3)


def test_points_that_another_dominates_are_left_out() -> None:
    problem = drifted("balance")
    free, within = within_shares("balance")
    # Moves for nothing: a GPU pair's contents exchanged in a layer.
    pointless = problem.current.slot_to_expert_LP.copy()
    room = problem.slots_per_gpu
    pointless[1, : 2 * room] = np.roll(pointless[1, : 2 * room], room)
    layouts = [*(each.layout for each in within), replace(problem.current, slot_to_expert_LP=pointless)]
    points = move_points(problem, layouts, before=problem.current, expert_bytes=100)
    goods = [(-point.moved_slots, point.local_gpu, -point.imbalance) for point in points]
    for good, other in product(goods, repeat=2):
        assert good == other or any(mine > theirs for mine, theirs in zip(good, other, strict=True))
    kept = {point.moved_slots for point in points}
    assert 0 in kept
    assert moved(problem, layouts[-1]) not in kept - {moved(problem, each.layout) for each in within}
    assert all(point.moved_bytes == 100 * point.moved_slots for point in points)
    assert max(kept) == moved(problem, free.layout)


def test_points_where_nothing_is_local_are_judged_by_balance() -> None:
    problem = replace(drifted("balance"), dispatch=Dispatch.EVEN)
    points = move_points(problem, [problem.current, solve(problem).layout], before=problem.current)
    assert {type(point) for point in points} == {MovePoint}
    assert [(point.local_gpu, point.moved_bytes) for point in points] == [(None, None)] * 2
    assert points[0].imbalance > points[1].imbalance
