"""Plans for several numbers of slots: which numbers, and what each is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placement.bounds import local_gpu_bound
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.problem import Objective, Problem
from placement.score import score
from placement.sizing import plan_by_slots, slots_worth_planning
from placement.solver import solve
from placement.topology import Topology


@pytest.fixture
def problem() -> Problem:
    counts_WLE = np.random.default_rng(4).gamma(0.7, 300.0, (2, 3, 16)).astype(int) + 1
    return Problem(Demand.uniform(counts_WLE), Topology(4), 7, max_imbalance=1.1)


def test_numbers_hold_the_fewest_the_own_and_what_the_target_needs(problem: Problem) -> None:
    numbers = slots_worth_planning(problem, local_target=0.6, rows=3)
    needed = next(
        slots for slots in range(4, 17) if local_gpu_bound(problem.demand, problem.topology, slots).share >= 0.6
    )
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 4
    assert {7, needed} <= set(numbers)
    assert numbers[-1] <= 16


def test_a_curve_of_one_point_is_refused(problem: Problem) -> None:
    with pytest.raises(BadOption, match="1 rows were asked for"):
        slots_worth_planning(problem, local_target=0.6, rows=1)


def test_every_row_is_a_plan_as_the_ruler_sees_it(problem: Problem) -> None:
    shares: list[float] = []
    rows = plan_by_slots(problem, [4, 7, 10, 16], progress=shares.append)
    assert [row.slots_per_gpu for row in rows] == [4, 7, 10, 16]
    assert shares == [0.25, 0.5, 0.75, 1.0]
    asked = replace(problem, slots_per_gpu=10)
    layout = solve(asked, exact_seconds=0).layout
    judged = score(layout, asked.demand, asked.topology, dispatch=asked.dispatch)
    assert (rows[2].local_gpu, rows[2].imbalance) == (judged.local_gpu, judged.worst_window.imbalance)
    for row in rows:
        assert row.local_gpu is not None
        assert row.local_gpu_bound is not None
        assert row.local_gpu <= row.local_gpu_bound * (1 + 1e-9)
    assert rows[-1].local_gpu == pytest.approx(1.0)


def test_where_nothing_is_local_rows_say_how_even_plans_are(problem: Problem) -> None:
    even = replace(problem, dispatch=Dispatch.EVEN, objective=Objective.BALANCE)
    numbers = slots_worth_planning(even, local_target=0.6, rows=3)
    rows = plan_by_slots(even, numbers)
    assert all(row.local_gpu is None and row.local_gpu_bound is None and row.imbalance >= 1 for row in rows)


def test_limits_on_going_there_say_nothing_about_other_numbers(problem: Problem) -> None:
    running = solve(problem, exact_seconds=0).layout
    limited = replace(problem, current=running, max_moved_slots=0)
    assert plan_by_slots(limited, [7, 8]) == plan_by_slots(problem, [7, 8])
