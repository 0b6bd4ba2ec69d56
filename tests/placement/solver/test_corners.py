"""Demand and sizes at their corners, each by name: a valid plan, the figures that must come out, and no surprise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placement.demand import Demand
from placement.errors import EmptyProfile, RedundancyTooHigh, SlotsBelowExperts
from placement.problem import Problem
from placement.solution import Status
from placement.solver import solve
from placement.topology import Topology
from tests.placement.solver.judging import faults_of, local_share, worst_window
from tests.placement.solver.problems import OBJECTIVES

ROUNDING = 1e-9


def counts(layers: int, experts: int, *, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 100, size=(layers, experts))


def every_objective(tokens: np.ndarray, gpus: int, slots_per_gpu: int) -> list[Problem]:
    problem = Problem(Demand.uniform(tokens), Topology(gpus), slots_per_gpu, max_imbalance=float(gpus))
    return [replace(problem, objective=objective) for objective in OBJECTIVES]


def test_layers_without_demand_keep_the_trivial_row_and_count_for_nothing() -> None:
    tokens_LE = counts(3, 8)
    alone = tokens_LE[1:2].copy()
    tokens_LE[[0, 2]] = 0
    for busy, one in zip(every_objective(tokens_LE, 4, 3), every_objective(alone, 4, 3), strict=True):
        layout = solve(busy).layout
        assert not faults_of(busy, layout)
        assert worst_window(busy, layout) == pytest.approx(worst_window(one, solve(one).layout))
        assert layout.slot_to_expert_LP[0].tolist() == (np.arange(12) % 8).tolist()


def test_no_demand_at_all_is_refused() -> None:
    with pytest.raises(EmptyProfile):
        Problem(Demand.uniform(np.zeros((2, 8), dtype=int)), Topology(4), 3)


def test_experts_without_demand_still_have_a_slot() -> None:
    tokens_LE = counts(2, 8)
    tokens_LE[:, 4:] = 0
    for problem in every_objective(tokens_LE, 4, 3):
        layout = solve(problem).layout
        assert not faults_of(problem, layout)
        assert (layout.replicas_LEG.sum(axis=2) >= 1).all()


def test_one_hot_expert_is_on_every_gpu() -> None:
    """All demand on one expert: everywhere it is local and even at once, and that is proven."""
    tokens_LE = np.zeros((2, 8), dtype=int)
    tokens_LE[:, 5] = 1000
    for problem in every_objective(tokens_LE, 4, 3):
        solution = solve(problem)
        assert (solution.layout.replicas_LEG.sum(axis=2)[:, 5] == 4).all()
        assert worst_window(problem, solution.layout) == pytest.approx(1.0)
        assert local_share(problem, solution.layout) == pytest.approx(1.0)


def test_equal_loads_are_even() -> None:
    for problem in every_objective(np.full((2, 8), 7), 4, 2):
        solution = solve(problem)
        assert worst_window(problem, solution.layout) == pytest.approx(1.0)
        assert not faults_of(problem, solution.layout)


@pytest.mark.parametrize(("experts", "gpus", "slots_per_gpu"), [(10, 4, 3), (7, 3, 3), (5, 4, 2), (13, 8, 2)])
def test_experts_that_gpus_do_not_divide(experts: int, gpus: int, slots_per_gpu: int) -> None:
    """The spare slots make it fit; all of them are filled."""
    for problem in every_objective(counts(2, experts), gpus, slots_per_gpu):
        layout = solve(problem).layout
        assert not faults_of(problem, layout)
        assert (layout.replicas_LEG.sum(axis=(1, 2)) == gpus * slots_per_gpu).all()


def test_without_spare_slots_experts_must_be_divided() -> None:
    with pytest.raises(SlotsBelowExperts):
        Problem(Demand.uniform(counts(1, 10)), Topology(4), 2)


def test_as_many_experts_as_gpus_and_one_slot_each() -> None:
    """Nothing to choose: the busiest expert's load over the mean, and 1 / G local; optimal."""
    tokens_LE = counts(1, 4)
    for problem in every_objective(tokens_LE, 4, 1):
        solution = solve(problem)
        assert worst_window(problem, solution.layout) == pytest.approx(tokens_LE.max() / tokens_LE.mean())
        assert local_share(problem, solution.layout) == pytest.approx(1 / 4)


def test_as_many_experts_as_gpus_and_spare_slots() -> None:
    for problem in every_objective(counts(2, 4), 4, 2):
        assert not faults_of(problem, solve(problem).layout)


def test_as_many_slots_on_a_gpu_as_experts() -> None:
    """Every expert everywhere: all local, all even, proven for both."""
    for problem in every_objective(counts(2, 5), 3, 5):
        solution = solve(problem)
        assert solution.layout.replicas_LEG.all()
        assert worst_window(problem, solution.layout) <= 1 + ROUNDING
        assert local_share(problem, solution.layout) == pytest.approx(1.0)
        if problem.objective in OBJECTIVES[:2]:
            assert solution.status is Status.OPTIMAL


def test_more_slots_on_a_gpu_than_experts_are_refused() -> None:
    with pytest.raises(RedundancyTooHigh):
        Problem(Demand.uniform(counts(1, 5)), Topology(3), 6)
