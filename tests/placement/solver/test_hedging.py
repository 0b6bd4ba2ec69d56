"""Hedging gives up at most what it may, keeps the cap, and holds better on traffic that was not planned for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.problem import Objective, Problem
from placement.score import score
from placement.solver import fit, solve
from placement.solver.hedging import PRIOR_WINDOWS, variance_of
from placement.solver.instance import instance_of
from placement.solver.placing import Placing
from placement.solver.replicas import _local_changes
from placement.solver.starts import slots_of_hosts
from placement.topology import Topology
from tests.placement.solver.judging import faults_of, local_share, localises, worst_window
from tests.placement.solver.problems import problems

ROUNDING = 1e-8


def shifting(*, windows: int, seed: int = 0) -> tuple[Demand, Demand]:
    """Windows whose experts vary about one profile: the first to plan for, as many more to judge on."""
    generator = np.random.default_rng(seed)
    usual_LE = generator.lognormal(sigma=0.8, size=(6, 32))
    tokens_WLE = usual_LE * generator.lognormal(sigma=0.5, size=(2 * windows, 6, 32)) * 1000
    demand = Demand.uniform(tokens_WLE.astype(np.int64))
    return demand.pick_windows(range(windows)), demand.pick_windows(range(windows, 2 * windows))


def problem_of(demand: Demand, **options: object) -> Problem:
    return replace(Problem(demand, Topology(4), slots_per_gpu=16), **options)


@settings(max_examples=40)
@given(problem=problems(), part=st.sampled_from([0.01, 0.1, 0.5]))
def test_no_more_is_given_up_than_may_be(problem: Problem, part: float) -> None:
    problem = replace(problem, current=None)
    free, hedged = solve(problem), solve(replace(problem, hedge=part))
    assert not faults_of(problem, hedged.layout)
    assert worst_window(problem, hedged.layout) <= max(hedged.max_imbalance, worst_window(problem, free.layout)) * (
        1 + ROUNDING
    )
    if localises(problem):
        least = (1 - part) * (local_share(problem, free.layout) or 0.0)
        assert (local_share(problem, hedged.layout) or 0.0) >= least * (1 - ROUNDING)
    else:
        assert hedged.layout == free.layout


@pytest.mark.parametrize("seed", range(3))
def test_it_holds_better_on_other_traffic(seed: int) -> None:
    planned, later = shifting(windows=4, seed=seed)
    free, hedged = (solve(problem_of(planned, hedge=part)).layout for part in (0.0, 0.1))
    on_later = [
        score(layout, later, Topology(4), dispatch=Dispatch.NEAREST_DYNAMIC).imbalance for layout in (free, hedged)
    ]
    assert on_later[1] < on_later[0]
    replicas = [layout.replicas_LEG.sum(axis=2) for layout in (free, hedged)]
    assert (replicas[1] == 1).sum() < (replicas[0] == 1).sum()


def test_a_target_that_is_reached_stays_reached() -> None:
    planned, _ = shifting(windows=3)
    problem = problem_of(planned)
    best = local_share(problem, solve(problem).layout) or 0.0
    target = best * 0.99
    hedged = solve(replace(problem, hedge=0.2, least_local=target))
    assert target <= (local_share(problem, hedged.layout) or 0.0) < best
    without = solve(replace(problem, hedge=0.2))
    assert (local_share(problem, without.layout) or 0.0) < target


def test_a_target_out_of_reach_forbids_to_hedge() -> None:
    planned, _ = shifting(windows=3)
    problem = problem_of(planned)
    assert solve(replace(problem, hedge=0.2, least_local=1.0)).layout == solve(problem).layout


def test_the_fewest_slots_are_the_same() -> None:
    planned, _ = shifting(windows=3)
    problem = problem_of(planned)
    slots, _ = fit(problem, local_target=0.6)
    hedged_slots, solution = fit(replace(problem, hedge=0.1, least_local=0.6), local_target=0.6)
    assert hedged_slots == slots
    assert (local_share(replace(problem, slots_per_gpu=slots), solution.layout) or 0.0) >= 0.6


def test_a_running_plan_that_is_hedged_stays() -> None:
    planned, _ = shifting(windows=3)
    problem = problem_of(planned, hedge=0.05)
    running = solve(problem).layout
    assert solve(replace(problem, current=running)).layout == running


def test_balance_alone_does_not_hedge() -> None:
    planned, _ = shifting(windows=2)
    problem = problem_of(planned, objective=Objective.BALANCE)
    assert solve(replace(problem, hedge=0.1)).layout == solve(problem).layout


def test_variances_are_drawn_towards_their_mean() -> None:
    tokens_WLE = np.array([[[10, 30, 60, 100]], [[30, 30, 60, 80]]])
    instance = instance_of(Problem(Demand.uniform(tokens_WLE), Topology(2), 3))
    measured_E = np.array([0.02, 0.0, 0.0, 0.02])
    expected_E = (measured_E + PRIOR_WINDOWS * measured_E.mean()) / (1 + PRIOR_WINDOWS)
    assert variance_of(instance)[0] == pytest.approx(expected_E)


@pytest.mark.parametrize("windows", [1, 3])
def test_alike_windows_say_nothing_of_any_expert(windows: int) -> None:
    tokens_WLE = np.tile(np.array([[[10, 30, 60, 100]]]), (windows, 1, 1))
    variance_E = variance_of(instance_of(Problem(Demand.uniform(tokens_WLE), Topology(2), 3)))[0]
    assert variance_E == pytest.approx([0.25] * 4)


def test_replacements_see_what_a_replica_takes_off() -> None:
    """What leaving and entering is worth is the difference of the layers' figures before and after."""
    planned, _ = shifting(windows=2)
    base = instance_of(problem_of(planned))
    instance = replace(base, variation_LE=np.random.default_rng(0).random((base.layers, base.experts)))
    layout = solve(problem_of(planned)).layout
    placing = Placing(instance, slots_of_hosts(layout.replicas_LEG > 0))
    lost_REG, gained_REG = _local_changes(placing, np.arange(instance.layers))
    before_L = instance.local_of(placing.hosts_LEG)
    several_LE = placing.replicas_LE > 1
    for layer, expert in np.argwhere(several_LE).tolist()[:20]:
        gpu = int(placing.hosts_LEG[layer, expert].argmax())
        hosts_LEG = placing.hosts_LEG.copy()
        hosts_LEG[layer, expert, gpu] = False
        lost = before_L[layer] - instance.local_of(hosts_LEG)[layer]
        assert lost_REG[layer, expert, gpu] == pytest.approx(lost)
    for layer, expert, gpu in np.argwhere(~placing.hosts_LEG).tolist()[:20]:
        hosts_LEG = placing.hosts_LEG.copy()
        hosts_LEG[layer, expert, gpu] = True
        gained = instance.local_of(hosts_LEG)[layer] - before_L[layer]
        assert gained_REG[layer, expert, gpu] == pytest.approx(gained)
