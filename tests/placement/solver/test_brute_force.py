"""Tiny problems against all their layouts: how far from the optimum plans are, and whether proofs are true."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from placement.dispatch import Dispatch
from placement.problem import LocalScope, Objective, Problem
from placement.solution import Solution, Status
from placement.solver import solve
from tests.placement.bounds.brute_force import Reachable, TinyProblem, reachable
from tests.placement.bounds.tiny_problems import tiny_problem
from tests.placement.solver.judging import local_bound, local_share, worst_window

PROBLEMS = 216
ROUNDING = 1e-8
SMALL_GAP = 0.01
"""No plan is further from the optimum than this part of it."""

SEARCHED, SEARCH_GAP = 108, 0.20
"""The same for the local search without the exact models, on problems that are nothing but corner cases."""

ROOM = (1.0, 1.02, 1.1, 1.4)
"""Caps for locality, over the smallest imbalance that can be reached."""


@dataclass(frozen=True)
class Tried:
    """A problem with its plan and its optimum, both as shares or imbalances by the ruler."""

    problem: Problem
    solution: Solution
    figure: float
    optimum: float

    @property
    def gap(self) -> float:
        """How much worse the plan is, as a part of the optimum; negative if it is better."""
        worse = (
            self.figure - self.optimum if self.problem.objective is Objective.BALANCE else self.optimum - self.figure
        )
        return worse / self.optimum if self.optimum else worse


def planned_by_expectation(tiny: TinyProblem) -> TinyProblem:
    """Static dispatch is planned as dynamic; every other kind stays."""
    return replace(tiny, dispatch=Dispatch.NEAREST_DYNAMIC) if tiny.dispatch is Dispatch.NEAREST_STATIC else tiny


@pytest.fixture(scope="module")
def layouts() -> list[tuple[TinyProblem, Reachable]]:
    """Score all layouts of every problem."""
    tinies = [planned_by_expectation(tiny_problem(seed)) for seed in range(PROBLEMS)]
    return [(tiny, reachable(tiny)) for tiny in tinies]


@pytest.fixture(scope="module")
def balanced(layouts: list[tuple[TinyProblem, Reachable]]) -> list[Tried]:
    return [try_balance(tiny, all_layouts) for tiny, all_layouts in layouts]


@pytest.fixture(scope="module")
def localised(layouts: list[tuple[TinyProblem, Reachable]]) -> list[Tried]:
    kept = [(tiny, all_layouts) for tiny, all_layouts in layouts if tiny.dispatch is not Dispatch.EVEN]
    return [try_locality(index, *each) for index, each in enumerate(kept)]


@pytest.fixture(scope="module")
def searched(layouts: list[tuple[TinyProblem, Reachable]]) -> list[Tried]:
    """Balance without CP-SAT, as on layers that are too large for it."""
    return [try_balance(tiny, all_layouts, exact_seconds=0.0) for tiny, all_layouts in layouts[:SEARCHED]]


def try_balance(tiny: TinyProblem, all_layouts: Reachable, *, exact_seconds: float | None = None) -> Tried:
    problem = Problem(
        tiny.demand, tiny.topology, tiny.slots_per_gpu, objective=Objective.BALANCE, dispatch=tiny.dispatch
    )
    solution = solve(problem, exact_seconds=exact_seconds)
    return Tried(problem, solution, worst_window(problem, solution.layout), all_layouts.imbalance)


def try_locality(index: int, tiny: TinyProblem, all_layouts: Reachable) -> Tried:
    """Both scopes and several caps in turn; every fifth cap cannot be kept, and the smallest that can is asked for."""
    smallest = all_layouts.imbalance
    cap = max(1.0, smallest * 0.9) if index % 5 == 4 else smallest * ROOM[index % len(ROOM)] * (1 + ROUNDING)
    scope = LocalScope.NODE if index % 3 == 2 else LocalScope.GPU
    problem = Problem(
        tiny.demand, tiny.topology, tiny.slots_per_gpu, local_scope=scope, max_imbalance=cap, dispatch=tiny.dispatch
    )
    solution = solve(problem)
    share = local_share(problem, solution.layout)
    assert share is not None
    local_X = all_layouts.local_node_X if scope is LocalScope.NODE else all_layouts.local_gpu_X
    used = solution.max_imbalance * (1 + ROUNDING)
    return Tried(problem, solution, share, all_layouts.best_local(local_X, cap=used))


def gaps(tried: list[Tried]) -> np.ndarray:
    return np.array([one.gap for one in tried])


def distribution(tried: list[Tried]) -> str:
    """Say how large the gaps are, and for which problems the largest."""
    values = gaps(tried)
    parts = ", ".join(f"{quantile:.0%} {np.quantile(values, quantile):.2%}" for quantile in (0.5, 0.9, 0.95, 0.99, 1.0))
    worst = np.argsort(-values)[:5]
    listed = "; ".join(f"problem {index}: {values[index]:.2%}" for index in worst.tolist() if values[index] > ROUNDING)
    exact = int((values <= ROUNDING).sum())
    statuses = Counter(one.solution.status.value for one in tried)
    return f"{exact} of {len(tried)} at the optimum; quantiles {parts}; {dict(statuses)}; {listed or 'no gap'}"


def test_problems_are_many_and_different(balanced: list[Tried], localised: list[Tried]) -> None:
    assert len(balanced) >= 200
    assert len(localised) >= 120
    for tried in (balanced, localised):
        assert {one.problem.demand.windows for one in tried} == {1, 2, 3}
        assert {one.problem.demand.sources for one in tried} == {"measured", "uniform"}
        assert {one.problem.topology.nodes for one in tried} >= {1, 2, 3}
    assert sum(one.optimum > 1.05 for one in balanced) >= 60
    assert sum(one.optimum < 0.9 for one in localised) >= 60


def test_balance_is_never_beyond_the_optimum_and_close_to_it(balanced: list[Tried]) -> None:
    print("balance:", distribution(balanced))
    assert gaps(balanced).min() >= -ROUNDING
    assert gaps(balanced).max() <= SMALL_GAP, distribution(balanced)
    assert (gaps(balanced) <= ROUNDING).mean() >= 0.97, distribution(balanced)


def test_locality_is_never_beyond_the_optimum_and_close_to_it(localised: list[Tried]) -> None:
    print("locality:", distribution(localised))
    assert gaps(localised).min() >= -ROUNDING
    assert gaps(localised).max() <= SMALL_GAP, distribution(localised)
    assert (gaps(localised) <= ROUNDING).mean() >= 0.97, distribution(localised)


def test_the_cap_of_locality_is_kept_or_the_smallest_there_is(
    layouts: list[tuple[TinyProblem, Reachable]], localised: list[Tried]
) -> None:
    smallest = [each.imbalance for tiny, each in layouts if tiny.dispatch is not Dispatch.EVEN]
    beyond = 0
    for one, reachable_imbalance in zip(localised, smallest, strict=True):
        asked, used = one.problem.max_imbalance, one.solution.max_imbalance
        assert worst_window(one.problem, one.solution.layout) <= used * (1 + ROUNDING)
        if reachable_imbalance <= asked:
            assert used == asked
        else:
            beyond += 1
            assert reachable_imbalance * (1 - ROUNDING) <= used <= reachable_imbalance * (1 + SMALL_GAP)
    assert beyond >= 10


def test_optimal_is_the_optimum(balanced: list[Tried], localised: list[Tried]) -> None:
    proven = [one for one in [*balanced, *localised] if one.solution.status is Status.OPTIMAL]
    assert len(proven) >= 0.8 * len(balanced + localised)
    for one in proven:
        assert one.figure == pytest.approx(one.optimum, rel=ROUNDING)


def test_bounds_are_never_passed(
    layouts: list[tuple[TinyProblem, Reachable]], balanced: list[Tried], localised: list[Tried]
) -> None:
    for one, (_, all_layouts) in zip(balanced, layouts, strict=True):
        assert one.solution.bound.imbalance is not None
        assert one.solution.bound.imbalance <= all_layouts.imbalance * (1 + ROUNDING)
    for one in localised:
        bound = local_bound(one.problem, one.solution)
        assert bound is not None
        assert one.optimum <= bound * (1 + ROUNDING)


def test_the_search_alone_is_close_too(searched: list[Tried]) -> None:
    print("balance, local search alone:", distribution(searched))
    assert gaps(searched).min() >= -ROUNDING
    assert gaps(searched).max() <= SEARCH_GAP, distribution(searched)
    assert (gaps(searched) <= ROUNDING).mean() >= 0.85, distribution(searched)
    for one in searched:
        assert one.solution.bound.imbalance is not None
        assert one.solution.bound.imbalance <= one.optimum * (1 + ROUNDING)
