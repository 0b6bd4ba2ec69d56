"""Failures that others reported, each as its whole kind: idle experts, phases with different peaks, scaled counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placement.demand import Demand
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import score
from placement.slots import slots_per_gpu_from_redundant
from placement.solver import solve
from placement.topology import Topology
from tests.case_files import case, case_json
from tests.placement.solver.judging import worst_window
from tests.placement.solver.problems import OBJECTIVES


def idle_experts() -> tuple[Problem, list[int]]:
    request = case_json("L10", "request.json")
    experts, gpus = request["num_experts"], request["ep_size"]
    slots = slots_per_gpu_from_redundant(experts=experts, gpus=gpus, redundant=request["num_redundant"])
    problem = Problem(Demand.uniform(np.array(request["counts"])), Topology(gpus), slots, max_imbalance=2.0)
    return problem, case("L10")["expect"]["oracle"]["unused"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_experts_without_load_get_one_slot_each(objective: Objective) -> None:
    problem, unused = idle_experts()
    solution = solve(Problem(problem.demand, problem.topology, problem.slots_per_gpu, objective=objective))
    replicas_E = solution.layout.replicas_LEG.sum(axis=2)[0]
    assert replicas_E[unused].tolist() == [1] * len(unused)
    assert replicas_E.sum() == problem.slots


@pytest.mark.parametrize("seed", range(4))
def test_idle_experts_get_more_only_when_busy_ones_are_everywhere(seed: int) -> None:
    """For locality; for balance a second slot without load can be just what evens a GPU out."""
    generator = np.random.default_rng(seed)
    tokens_LE = generator.integers(1, 100, (3, 16)) * (generator.random((3, 16)) < 0.5)
    tokens_LE[:, 0] = 50
    problem = Problem(Demand.uniform(tokens_LE), Topology(4), 6, max_imbalance=4.0)
    replicas_LE = solve(problem, seed=seed).layout.replicas_LEG.sum(axis=2)
    for tokens_E, replicas_E in zip(tokens_LE, replicas_LE, strict=True):
        idle_E = tokens_E == 0
        assert (replicas_E[idle_E] == 1).all() or (replicas_E[~idle_E] == problem.topology.gpus).all()


def phases() -> Demand:
    request = case_json("L15", "request.json")
    return Demand.uniform(np.stack([request["prefill"], request["decode"]]), ("prefill", "decode"))


def test_one_layout_for_prefill_and_decode_is_the_best_of_all() -> None:
    demand, topology = phases(), Topology(2)
    problem = Problem(demand, topology, 2, objective=Objective.BALANCE)
    every_layout = [
        Layout(np.array([[*first, *set(range(4)).difference(first)]], dtype=np.int32), gpus=2, experts=4)
        for first in itertools.combinations(range(4), 2)
    ]
    best = min(worst_window(problem, layout) for layout in every_layout)
    assert worst_window(problem, solve(problem).layout) == pytest.approx(best)


def test_phases_added_up_hide_the_imbalance_of_decode() -> None:
    demand, topology, oracle = phases(), Topology(2), case("L15")["expect"]["oracle"]
    merged = solve(Problem(demand.merged(), topology, 2, objective=Objective.BALANCE)).layout
    assert sorted(sorted(gpu) for gpu in merged.slot_to_expert_LP.reshape(2, 2).tolist()) == oracle["combined_best"]
    metrics = score(merged, demand, topology, dispatch=Problem(demand, topology, 2).dispatch)
    assert 1 / metrics.windows[1].imbalance == pytest.approx(oracle["decode_balancedness_under_combined"])


@pytest.mark.parametrize(("window", "key"), [(0, "prefill_best_max"), (1, "decode_best_max")])
def test_a_plan_for_each_phase_reaches_its_own_best(window: int, key: str) -> None:
    demand, topology = phases().pick_windows([window]), Topology(2)
    problem = Problem(demand, topology, 2, objective=Objective.BALANCE)
    mean = demand.total_tokens / topology.gpus
    largest = worst_window(problem, solve(problem).layout) * mean
    assert largest == pytest.approx(case("L15")["expect"]["oracle"][key])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_counts_of_every_rank_added_up_give_the_same_plan(objective: Objective) -> None:
    plans = []
    for name in ("a.json", "b.json"):
        demand = Demand.uniform(np.array(case_json("P04", name)["logical_count"]))
        plans.append(solve(Problem(demand, Topology(4), 3, objective=objective)).layout)
    assert plans[0] == plans[1]
