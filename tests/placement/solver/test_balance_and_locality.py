"""Both objectives look for the smallest imbalance in the same way."""

from __future__ import annotations

from placement.demand import Demand
from placement.problem import Objective, Problem
from placement.solver import solve
from placement.topology import Topology
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.recordings import MIXED, recording_path
from profiler.windows import WindowBy, build_demand
from tests.placement.solver.judging import worst_window

FLATTEST_ONCE = 1.0552
"""What locality found there while balance stopped at 1.0555."""


def tasks() -> Demand:
    """Every task of the shipped recording is a window."""
    readers = open_inputs([recording_path(MIXED)], ReadOptions())
    return build_demand(readers, window_by=WindowBy.parse("domain"), gpus=4).demand


def test_balance_is_never_worse_than_what_locality_finds_under_an_unreachable_cap() -> None:
    """16 tasks as windows, 4 GPUs x 12 slots; perfect balance is out of reach, so locality looks for the smallest."""
    demand = tasks()
    problem = Problem(demand, Topology(4), 12, objective=Objective.BALANCE)
    balanced = worst_window(problem, solve(problem, exact_seconds=0.0).layout)
    local = solve(Problem(demand, Topology(4), 12, max_imbalance=1.0), exact_seconds=0.0)
    assert balanced <= local.max_imbalance * (1 + 1e-12)
    assert balanced <= FLATTEST_ONCE


def test_a_cap_that_balance_keeps_is_kept_by_locality_too() -> None:
    """Mixtures of layouts, as the master counts them, are below the cap before any layout is."""
    demand = tasks()
    problem = Problem(demand, Topology(4), 12, objective=Objective.BALANCE)
    balanced = worst_window(problem, solve(problem, exact_seconds=0.0).layout)
    local = solve(Problem(demand, Topology(4), 12, max_imbalance=balanced + 1e-6), exact_seconds=0.0)
    assert local.max_imbalance == balanced + 1e-6
    assert worst_window(problem, local.layout) <= local.max_imbalance
