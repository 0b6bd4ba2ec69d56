"""No bound is ever passed: checked on tiny problems by trying every layout."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from placement.bounds import (
    ImbalanceBound,
    LocalityBound,
    imbalance_bound,
    local_gpu_bound,
    local_node_bound,
)
from placement.dispatch import Dispatch
from tests.placement.bounds.brute_force import BestOfAll, TinyProblem, best_of_all_layouts
from tests.placement.bounds.tiny_problems import tiny_problem

PROBLEMS = 270
ROUNDING = 1e-12


@dataclass(frozen=True)
class Tried:
    problem: TinyProblem
    best: BestOfAll
    gpu: LocalityBound
    node: LocalityBound
    imbalance: ImbalanceBound


@pytest.fixture(scope="module")
def tried() -> list[Tried]:
    """Bound every problem, and try all its layouts."""
    return [_try(tiny_problem(seed)) for seed in range(PROBLEMS)]


def _try(problem: TinyProblem) -> Tried:
    sizes = (problem.demand, problem.topology, problem.slots_per_gpu)
    return Tried(
        problem,
        best_of_all_layouts(problem),
        gpu=local_gpu_bound(*sizes),
        node=local_node_bound(*sizes),
        imbalance=imbalance_bound(*sizes, problem.dispatch),
    )


def locality_passed(bound: LocalityBound, best: float) -> bool:
    """Tell whether some layout serves a larger share than the bound allows."""
    return best > bound.share + ROUNDING


def imbalance_passed(bound: ImbalanceBound, best: BestOfAll) -> bool:
    """Tell whether some layout is flatter than the bound allows, in the worst window or in any window's layer."""
    flatter = best.imbalance < bound.imbalance * (1 - ROUNDING)
    return flatter or bool((best.max_load_WL < bound.max_load_WL * (1 - ROUNDING)).any())


def test_problems_are_many_and_different(tried: list[Tried]) -> None:
    kinds = Counter((one.problem.dispatch, one.problem.demand.sources) for one in tried)
    assert min(kinds[dispatch, sources] for dispatch in Dispatch for sources in ("measured", "uniform")) >= 20
    assert {one.problem.topology.nodes for one in tried} == {1, 2, 3, 4}
    assert {one.problem.demand.windows for one in tried} == {1, 2, 3}
    assert any((one.problem.demand.tokens_WLE.sum(axis=(0, 1)) == 0).any() for one in tried)
    assert sum(one.best.layouts for one in tried) > 100_000


def test_local_gpu_bound_is_never_passed(tried: list[Tried]) -> None:
    assert not [seed for seed, one in enumerate(tried) if locality_passed(one.gpu, one.best.local_gpu)]


def test_local_node_bound_is_never_passed(tried: list[Tried]) -> None:
    assert not [seed for seed, one in enumerate(tried) if locality_passed(one.node, one.best.local_node)]


def test_imbalance_bound_is_never_passed(tried: list[Tried]) -> None:
    assert not [seed for seed, one in enumerate(tried) if imbalance_passed(one.imbalance, one.best)]


@pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.NEAREST_STATIC])
def test_locality_bounds_are_met_under_nearest(tried: list[Tried], dispatch: Dispatch) -> None:
    """Without a limit on imbalance the relaxation is exact: the best layout reaches the bound."""
    chosen = [one for one in tried if one.problem.dispatch is dispatch]
    assert len(chosen) >= 80
    for one in chosen:
        assert one.gpu.share == pytest.approx(one.best.local_gpu, rel=0, abs=ROUNDING)
        assert one.node.share == pytest.approx(one.best.local_node, rel=0, abs=ROUNDING)


def test_hosts_of_the_bounds_reach_them(tried: list[Tried]) -> None:
    """The hosts handed out are valid layouts without duplicates, worth exactly the bound."""
    for one in tried:
        for bound, sites in ((one.gpu, one.problem.topology.gpus), (one.node, one.problem.topology.nodes)):
            assert (bound.hosts_LEG.sum(axis=1) == one.problem.slots_per_gpu).all()
            assert bound.hosts_LEG.any(axis=2).all()
            tokens_L = _tokens_hosted_at_home(one.problem, bound.hosts_LEG, sites=sites)
            assert tokens_L == pytest.approx(bound.tokens_L, rel=ROUNDING)
            assert tokens_L.sum() / one.problem.demand.total_tokens == pytest.approx(bound.share, rel=ROUNDING)


def _tokens_hosted_at_home(problem: TinyProblem, hosts_LEG: np.ndarray, *, sites: int) -> np.ndarray:
    gpus = problem.topology.gpus
    tokens_L = np.zeros(problem.demand.layers)
    for layer, expert, gpu in np.ndindex(hosts_LEG.shape):
        site = range(gpu * sites // gpus * gpus // sites, (gpu * sites // gpus + 1) * gpus // sites)
        if hosts_LEG[layer, expert, list(site)].any():
            windows = range(problem.demand.windows)
            tokens_L[layer] += sum(problem.tokens_from(window, layer, gpu, expert) for window in windows)
    return tokens_L / (1 if problem.demand.sources == "measured" else gpus)


def test_the_check_catches_a_wrong_locality_bound(tried: list[Tried]) -> None:
    """Negative control: 1 % too low is noticed in every problem where the bound is met."""
    met = [one for one in tried if one.problem.dispatch is not Dispatch.EVEN and one.best.local_gpu > 0]
    assert len(met) >= 150
    for one in met:
        assert locality_passed(replace(one.gpu, share=one.gpu.share * 0.99), one.best.local_gpu)
        assert locality_passed(replace(one.node, share=one.node.share * 0.99), one.best.local_node)


def test_the_check_catches_a_wrong_imbalance_bound(tried: list[Tried]) -> None:
    """Negative control: 1 % too high is noticed in every problem where the bound is tight, and those are many."""
    tight = [one for one in tried if one.best.imbalance < one.imbalance.imbalance * 1.001]
    assert len(tight) >= 40
    assert sum(one.imbalance.imbalance > 1.01 for one in tight) >= 20
    for one in tight:
        assert imbalance_passed(replace(one.imbalance, imbalance=one.imbalance.imbalance * 1.01), one.best)


def test_the_check_catches_the_equal_rule_where_only_any_holds() -> None:
    """Negative control of the proof: with measured sources a replica may be chosen by few tokens or by none, so
    some layout is flatter than equal shares allow.
    """
    caught = 0
    for seed in range(PROBLEMS):
        problem = tiny_problem(seed)
        if problem.demand.sources == "measured" and problem.dispatch is Dispatch.NEAREST_DYNAMIC:
            sizes = (problem.demand, problem.topology, problem.slots_per_gpu)
            caught += imbalance_passed(imbalance_bound(*sizes, Dispatch.EVEN), best_of_all_layouts(problem))
    assert caught >= 1
