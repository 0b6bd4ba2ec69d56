"""The fewest slots per GPU with which a solved plan reaches a local share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placement.bounds import local_gpu_bound, local_node_bound
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.layout import Layout
from placement.problem import LocalScope, Problem
from placement.solution import Status
from placement.solver import fit, solve
from placement.topology import Topology
from tests.placement.solver.judging import codes, faults_of, local_share


def problem_of(
    *, gpus: int = 4, nodes: int = 1, experts: int = 12, measured: bool = False, seed: int = 0, **options: object
) -> Problem:
    """Two layers, two windows of skewed counts; starts with the slots of one replica each, which fit ignores."""
    generator = np.random.default_rng(seed)
    heat_LE = generator.lognormal(0, 1, (2, experts))
    noise = generator.lognormal(0, 0.5, (2, 2, gpus if measured else 1, experts))
    tokens_WLSE = (heat_LE[None, :, None, :] * noise * 100).astype(int)
    demand = Demand(tokens_WLSE, "measured" if measured else "uniform", ("a", "b"))
    options = {"max_imbalance": 1.2} | options
    return Problem(demand, Topology(gpus, nodes), -(-experts // gpus), **options)  # type: ignore[arg-type]


PROBLEMS = {
    "uniform": problem_of(),
    "measured": problem_of(gpus=2, experts=8, measured=True),
    "tight cap": problem_of(gpus=3, experts=6, max_imbalance=1.02),
    "nodes": problem_of(nodes=2, local_scope=LocalScope.NODE),
    "six GPUs": problem_of(gpus=6, nodes=2, experts=7, measured=True),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("target", [0.5, 0.75])
def test_fewest_slots_whose_plan_reaches_the_target(name: str, target: float) -> None:
    """Every smaller number of slots is tried here, from one slot per expert on: none of their plans reaches it."""
    problem = PROBLEMS[name]
    slots_per_gpu, solution = fit(problem, local_target=target)
    fitted = replace(problem, slots_per_gpu=slots_per_gpu)
    assert not faults_of(fitted, solution.layout)
    share = local_share(fitted, solution.layout)
    assert share is not None
    assert share >= target
    assert "LOCAL_TARGET_MISSED" not in codes(solution)
    assert solution.status is not Status.TARGET_MISSED
    assert solution.layout == solve(fitted).layout
    for fewer in range(problem.slots_per_gpu, slots_per_gpu):
        smaller = replace(problem, slots_per_gpu=fewer)
        missed = local_share(smaller, solve(smaller).layout)
        assert missed is not None
        assert missed < target


@pytest.mark.parametrize("name", PROBLEMS)
def test_everything_on_every_gpu_is_all_local(name: str) -> None:
    problem = PROBLEMS[name]
    slots_per_gpu, solution = fit(problem, local_target=1.0)
    full = replace(problem, slots_per_gpu=slots_per_gpu)
    assert local_share(full, solution.layout) == pytest.approx(1.0)
    assert slots_per_gpu <= problem.demand.experts


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_target_needs_no_replicas(name: str) -> None:
    problem = PROBLEMS[name]
    assert fit(problem, local_target=0.0)[0] == problem.slots_per_gpu


class TestOutOfReach:
    problem = PROBLEMS["uniform"]

    def test_proven_by_the_bound(self) -> None:
        """Three slots cannot reach 90 % whatever the layout: the number of slots that could is named."""
        slots_per_gpu, solution = fit(self.problem, local_target=0.9, most_slots_per_gpu=4)
        assert slots_per_gpu == 4
        assert solution.status is Status.TARGET_MISSED
        (notice,) = [each for each in solution.notices if each.code == "LOCAL_TARGET_MISSED"]
        sizes = (self.problem.demand, self.problem.topology)
        needed = next(slots for slots in range(4, 13) if local_gpu_bound(*sizes, slots).share >= 0.9)
        assert needed > 4
        assert f"at least {needed} are needed (proven)" in notice.detail
        share = local_share(replace(self.problem, slots_per_gpu=4), solution.layout)
        assert f"4 slots per GPU reach {share:.4f}, the target is 0.9" in notice.detail

    def test_not_proven_but_not_reached(self) -> None:
        """The cap stands in the way of what the bound without it allows."""
        hot = Problem(Demand.uniform([[20, 8, 8, 8, 1, 1]]), Topology(2), 3, max_imbalance=1.0)
        limit = 4
        target = local_gpu_bound(hot.demand, hot.topology, limit).share
        assert replace(hot, slots_per_gpu=limit).slots_per_gpu < hot.demand.experts
        slots_per_gpu, solution = fit(hot, local_target=target - 1e-9, most_slots_per_gpu=limit)
        share = local_share(replace(hot, slots_per_gpu=slots_per_gpu), solution.layout)
        assert share is not None
        if share < target - 1e-9:
            (notice,) = [each for each in solution.notices if each.code == "LOCAL_TARGET_MISSED"]
            assert f"{limit} are the most that may be used" in notice.detail

    def test_the_node_scope_has_its_own_bound(self) -> None:
        problem = PROBLEMS["nodes"]
        slots_per_gpu, solution = fit(problem, local_target=0.99, most_slots_per_gpu=3)
        assert slots_per_gpu == 3
        needed = next(
            slots for slots in range(3, 13) if local_node_bound(problem.demand, problem.topology, slots).share >= 0.99
        )
        (notice,) = [each for each in solution.notices if each.code == "LOCAL_TARGET_MISSED"]
        assert f"at least {needed} are needed" in notice.detail


class TestRefused:
    problem = PROBLEMS["uniform"]

    @pytest.mark.parametrize("target", [-0.1, 1.01, float("nan")])
    def test_a_target_that_is_no_share(self, target: float) -> None:
        with pytest.raises(BadOption, match="share from 0 to 1"):
            fit(self.problem, local_target=target)

    def test_even_dispatch_has_nothing_local(self) -> None:
        with pytest.raises(BadOption, match="nothing is local"):
            fit(replace(self.problem, dispatch=Dispatch.EVEN), local_target=0.5)

    def test_fewer_slots_than_experts(self) -> None:
        with pytest.raises(BadOption, match="12 experts on 4 GPUs need 3"):
            fit(self.problem, local_target=0.5, most_slots_per_gpu=2)


def test_a_running_layout_is_used_at_its_own_slots_only() -> None:
    problem = PROBLEMS["uniform"]
    slots_per_gpu, solution = fit(problem, local_target=0.6)
    running = replace(problem, slots_per_gpu=slots_per_gpu, current=solution.layout)
    again, kept = fit(running, local_target=0.6)
    assert (again, kept.layout.hash) == (slots_per_gpu, solution.layout.hash)
    other = Layout(np.tile(np.arange(12), (2, 1)), gpus=4, experts=12)
    assert fit(replace(problem, current=other), local_target=0.6)[1].layout == solution.layout
