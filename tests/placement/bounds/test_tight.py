"""The tightest bound wins, with the name of its relaxation."""

from __future__ import annotations

import numpy as np
import pytest

from placement.bounds import imbalance_bound, local_gpu_bound, local_node_bound, tight_bounds
from placement.bounds.capped import HostSetBound
from placement.bounds.small import SmallLayersBound
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Problem
from placement.topology import Topology
from tests.placement.bounds.brute_force import TinyProblem, reachable
from tests.placement.bounds.tiny_problems import tiny_problem


def planned(tiny: TinyProblem, **options: object) -> Problem:
    return Problem(tiny.demand, tiny.topology, tiny.slots_per_gpu, dispatch=tiny.dispatch, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(54))
def test_never_weaker_and_never_passed(seed: int) -> None:
    """Every dispatch, sources and node count; for static dispatch only what needs no prices."""
    tiny = tiny_problem(seed)
    scope = list(LocalScope)[seed % 2]
    all_layouts = reachable(tiny)
    cap = all_layouts.imbalance * 1.1
    found = tight_bounds(planned(tiny, local_scope=scope), max_imbalance=cap, effort_s=0.2)
    bound, sizes = found.bound, (tiny.demand, tiny.topology, tiny.slots_per_gpu)
    assert bound.imbalance is not None
    assert imbalance_bound(*sizes, tiny.dispatch).imbalance <= bound.imbalance <= all_layouts.imbalance * (1 + 1e-9)
    if tiny.dispatch is Dispatch.EVEN:
        assert (bound.local_gpu, bound.local_node) == (None, None)
        assert set(bound.relaxation) == {"imbalance"}
        return
    assert bound.local_gpu is not None
    assert bound.local_node is not None
    best_gpu = all_layouts.best_local(all_layouts.local_gpu_X, cap=cap)
    best_node = all_layouts.best_local(all_layouts.local_node_X, cap=cap)
    assert best_gpu - 1e-9 <= bound.local_gpu <= local_gpu_bound(*sizes).share
    assert best_node - 1e-9 <= bound.local_node <= local_node_bound(*sizes).share
    assert set(bound.relaxation) == {"imbalance", "local_gpu", "local_node"}


def test_measured_sources_are_priced_over_host_sets() -> None:
    tokens_SE = [[90, 50, 40, 10, 10, 5], [10, 5, 5, 20, 10, 5]]
    problem = Problem(Demand(np.array([[tokens_SE]]), "measured", ("all",)), Topology(2), 5)
    found = tight_bounds(problem, max_imbalance=1.3)
    assert isinstance(found.local, HostSetBound)
    assert found.bound.relaxation["local_gpu"] == found.local.relaxation
    assert found.bound.local_gpu == found.local.value
    assert "imbalance <= 1.3" in found.local.relaxation


def test_few_experts_with_uniform_sources_are_searched() -> None:
    problem = Problem(Demand.uniform([[120, 110, 105, 100, 95, 90, 85, 80]]), Topology(8), 2, max_imbalance=1.1)
    found = tight_bounds(problem, effort_s=5.0)
    assert isinstance(found.local, SmallLayersBound)
    assert found.bound.relaxation["local_gpu"] == found.local.relaxation
    assert isinstance(found.imbalance, SmallLayersBound)
    assert found.bound.relaxation["imbalance"] == found.imbalance.relaxation


def test_what_counting_proves_as_well_is_named_after_counting() -> None:
    problem = Problem(Demand.uniform([[100] * 7 + [1]]), Topology(8), 2)
    found = tight_bounds(problem, effort_s=5.0)
    assert found.bound.imbalance == pytest.approx(100 / (701 / 8))
    assert found.imbalance is None


def test_many_experts_keep_the_bounds_without_prices() -> None:
    problem = Problem(Demand.uniform([list(range(1, 65))]), Topology(8), 24)
    found = tight_bounds(problem)
    assert (found.local, found.imbalance) == (None, None)
    assert found.bound.local_gpu == local_gpu_bound(problem.demand, problem.topology, 24).share
