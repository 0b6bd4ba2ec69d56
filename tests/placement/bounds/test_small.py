"""Bounds by searching small layers: never passed by any layout without duplicates, and met where they say so."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from placement.bounds import imbalance_bound, local_gpu_bound, small_imbalance_bound, small_local_bound
from placement.bounds.small import SmallLayersBound
from placement.bounds.small_layers import Layer, best_possible
from placement.bounds.small_shape import small_shape
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import LocalScope, Problem
from placement.score import score
from placement.topology import Topology
from tests.placement.bounds.brute_force import Reachable, TinyProblem, reachable
from tests.placement.bounds.tiny_problems import tiny_problem

PROBLEMS = 200
ROUNDING = 1e-7
ROOM = (1.0, 1.15)
"""Caps to try, over the smallest imbalance that can be reached."""


@dataclass(frozen=True)
class Tried:
    problem: Problem
    reachable: Reachable
    caps: tuple[float, ...]
    local: tuple[SmallLayersBound, ...]
    imbalance: SmallLayersBound

    @property
    def best_locals(self) -> list[float]:
        return [self.reachable.best_local(self.reachable.local_gpu_X, cap=cap) for cap in self.caps]


def with_equal_replicas(seed: int) -> TinyProblem | None:
    """Draw a problem in which all replicas of an expert carry the same load; None if this seed has none."""
    tiny = tiny_problem(seed)
    if tiny.demand.sources == "uniform" and tiny.topology.nodes == 1:
        return replace(tiny, dispatch=Dispatch.NEAREST_DYNAMIC)
    return replace(tiny, dispatch=Dispatch.EVEN) if seed % 3 == 0 else None


@pytest.fixture(scope="module")
def tried() -> list[Tried]:
    done: list[Tried] = []
    seed = 0
    while len(done) < PROBLEMS:
        tiny = with_equal_replicas(seed)
        seed += 1
        if tiny is not None:
            done.append(_try(tiny))
    return done


def _try(tiny: TinyProblem) -> Tried:
    problem = Problem(tiny.demand, tiny.topology, tiny.slots_per_gpu, dispatch=tiny.dispatch)
    all_layouts = reachable(tiny)
    caps = tuple(all_layouts.imbalance * room * (1 + ROUNDING) for room in ROOM)
    local = [small_local_bound(problem, max_imbalance=cap, effort_s=0.5) for cap in caps]
    imbalance = small_imbalance_bound(problem, effort_s=0.5)
    assert imbalance is not None
    assert all(bound is None for bound in local) == (tiny.dispatch is Dispatch.EVEN)
    return Tried(problem, all_layouts, caps, tuple(bound for bound in local if bound is not None), imbalance)


def local_passed(one: Tried, *, times: float = 1.0) -> bool:
    pairs = zip(one.best_locals, one.local, strict=False)
    return any(best > bound.value * times + ROUNDING for best, bound in pairs)


def test_problems_are_many_and_different(tried: list[Tried]) -> None:
    assert {one.problem.demand.windows for one in tried} == {1, 2, 3}
    assert sum(bool(one.local) for one in tried) >= 80
    assert sum(one.reachable.imbalance > 1.05 for one in tried) >= 100


def test_local_bound_is_never_passed(tried: list[Tried]) -> None:
    assert not [index for index, one in enumerate(tried) if local_passed(one)]


def test_imbalance_bound_is_never_passed(tried: list[Tried]) -> None:
    passed = [one.reachable.imbalance < one.imbalance.value * (1 - ROUNDING) for one in tried]
    assert not np.flatnonzero(passed).tolist()


def test_one_window_is_solved_to_the_optimum(tried: list[Tried]) -> None:
    """Layers are independent then; the layouts handed out reach the bound, by the ruler."""
    solved = [one for one in tried if one.problem.demand.windows == 1]
    assert len(solved) >= 40
    for one in solved:
        assert one.imbalance.optimal_L.all()
        assert one.imbalance.value == pytest.approx(one.reachable.imbalance, rel=ROUNDING)
        assert imbalance_of(one.imbalance, one.problem) == pytest.approx(one.imbalance.value, rel=ROUNDING)


def imbalance_of(bound: SmallLayersBound, problem: Problem) -> float:
    """Score the layouts of a bound; idle layers get the layout of a busy one."""
    experts_LGS = bound.experts_LGS.copy()
    idle_L = (experts_LGS < 0).any(axis=(1, 2))
    experts_LGS[idle_L] = experts_LGS[~idle_L][0]
    layout = Layout(experts_LGS.reshape(len(experts_LGS), -1), problem.topology.gpus, problem.demand.experts)
    assert layout.duplicated_slots() == 0
    return score(layout, problem.demand, problem.topology, dispatch=problem.dispatch).worst_window.imbalance


def test_tighter_than_what_does_not_search(tried: list[Tried]) -> None:
    tighter_balance = tighter_local = 0
    for one in tried:
        sizes = (one.problem.demand, one.problem.topology, one.problem.slots_per_gpu)
        tighter_balance += one.imbalance.value > imbalance_bound(*sizes, one.problem.dispatch).imbalance * 1.01
        tighter_local += any(bound.value < local_gpu_bound(*sizes).share * 0.99 for bound in one.local)
    assert tighter_balance >= 30
    assert tighter_local >= 8


def test_the_checks_catch_wrong_bounds(tried: list[Tried]) -> None:
    """Negative controls: 1 % off is noticed in many problems, because the bounds are tight there."""
    assert sum(local_passed(one, times=0.99) for one in tried) >= 50
    assert sum(one.reachable.imbalance < one.imbalance.value * 1.01 for one in tried) >= 100


def test_a_search_cut_short_stays_sound(tried: list[Tried]) -> None:
    """No part may be looked at: what is left open keeps its bound."""
    checked = 0
    for one in tried:
        demand, gpus = one.problem.demand, one.problem.topology.gpus
        shape = small_shape(experts=demand.experts, gpus=gpus, slots_per_gpu=one.problem.slots_per_gpu)
        assert shape is not None
        for layer in demand.moe_layers:
            tokens_WE = demand.tokens_WLE[:, layer].astype(float)
            tokens_WE = tokens_WE[tokens_WE.any(axis=1)]
            tokens_WE *= gpus / tokens_WE.sum(axis=1, keepdims=True)
            part_W = np.full(len(tokens_WE), 1 / len(tokens_WE))
            whole = Layer(tokens_WE, part_W, 1.0, tokens_WE.mean(axis=0) / 20)
            ended, cut = best_possible(shape, whole, nodes=10**6), best_possible(shape, whole, nodes=-1)
            assert ended.is_optimum
            assert cut.bound >= ended.bound
            checked += cut.bound > ended.bound
    assert checked >= 5


class TestKnownValues:
    def test_seven_heavy_experts(self) -> None:
        """16 slots on 8 GPUs: seven heavy experts have two replicas or more, so two halves meet somewhere."""
        demand = Demand.uniform([[100] * 7 + [1]])
        bound = small_imbalance_bound(Problem(demand, Topology(8), 2), effort_s=5.0)
        assert bound is not None
        assert bound.value == pytest.approx(100 / (701 / 8))

    def test_windows_are_coupled(self) -> None:
        """Each window alone can be flat, with the hot expert twice; no layout has both experts twice.

        The best layout has 1.25 in one window and 1 in the other, or the reverse: the mean is what prices can prove.
        """
        demand = Demand.uniform([[[4, 2, 2]], [[2, 4, 2]]])
        problem = Problem(demand, Topology(2), 2)
        alone = [small_imbalance_bound(replace(problem, demand=demand.pick_windows([w]))) for w in (0, 1)]
        assert [bound.value for bound in alone if bound] == pytest.approx([1.0, 1.0])
        both = small_imbalance_bound(problem, effort_s=2.0)
        assert both is not None
        assert both.value == pytest.approx(1.125)

    def test_prices_of_a_master_are_taken(self) -> None:
        problem = Problem(Demand.uniform([[[9, 1, 1, 1]], [[3, 3, 3, 3]]]), Topology(2), 2)
        bound = small_imbalance_bound(problem, window_price_W=[1.0, 0.0], effort_s=0.03)
        assert bound is not None
        assert bound.value == pytest.approx(10 / 6, rel=1e-6)


class TestAbsent:
    def test_replicas_that_differ_in_load(self) -> None:
        sources = Demand(np.ones((1, 1, 2, 3), dtype=int), "measured", ("all",))
        assert small_imbalance_bound(Problem(sources, Topology(2), 2)) is None
        assert small_imbalance_bound(Problem(sources, Topology(2), 2, dispatch=Dispatch.EVEN)) is not None
        assert small_imbalance_bound(Problem(Demand.uniform([[1, 1, 1]]), Topology(2, 2), 2)) is None

    def test_static_dispatch(self) -> None:
        problem = Problem(Demand.uniform([[1, 1, 1]]), Topology(2), 2, dispatch=Dispatch.NEAREST_STATIC)
        assert small_imbalance_bound(problem) is None
        assert small_local_bound(problem) is None

    def test_the_node_is_all_there_is(self) -> None:
        assert (
            small_local_bound(Problem(Demand.uniform([[1, 1, 1]]), Topology(2), 2, local_scope=LocalScope.NODE)) is None
        )

    def test_too_many_counts(self) -> None:
        assert small_imbalance_bound(Problem(Demand.uniform([[1] * 64]), Topology(8), 24)) is None

    def test_too_little_effort(self) -> None:
        problem = Problem(Demand.uniform(np.ones((32, 8), dtype=int)), Topology(8), 3)
        assert small_imbalance_bound(problem, effort_s=1.0) is None


SIZES = ((6, 5, 2), (5, 5, 3), (4, 6, 2), (6, 4, 3), (3, 6, 2), (7, 4, 2))
"""Experts, GPUs, slots per GPU: larger than what single tokens can be sent through."""


def every_multiset(*, experts: int, gpus: int, slots_per_gpu: int) -> tuple[np.ndarray, np.ndarray]:
    """List all layouts up to the names of GPUs: hosts, bool [X, G, E], and replica counts [X, E]."""
    contents = list(itertools.combinations(range(experts), slots_per_gpu))
    chosen_XG = np.array(list(itertools.combinations_with_replacement(range(len(contents)), gpus)))
    holds_AE = np.array([[expert in content for expert in range(experts)] for content in contents])
    hosts_XGE = holds_AE[chosen_XG]
    counts_XE = hosts_XGE.sum(axis=1)
    whole = (counts_XE > 0).all(axis=1)
    return hosts_XGE[whole], counts_XE[whole]


@pytest.mark.parametrize("beam", [1, 1000])
@pytest.mark.parametrize(("experts", "gpus", "slots_per_gpu"), SIZES)
def test_search_finds_the_best_of_all_layouts(
    experts: int, gpus: int, slots_per_gpu: int, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several windows, with and without worth: the very optimum, and a layout that has it.

    With a narrow beam the dive misses it, so that the search itself has to find it.
    """
    monkeypatch.setattr("placement.bounds.small_layers.BEAM", beam)
    shape = small_shape(experts=experts, gpus=gpus, slots_per_gpu=slots_per_gpu)
    assert shape is not None
    hosts_XGE, counts_XE = every_multiset(experts=experts, gpus=gpus, slots_per_gpu=slots_per_gpu)
    generator = np.random.default_rng(experts * gpus)
    for case in range(24):
        windows = 1 + case % 4
        tokens_WE = generator.gamma(1.0 + case, size=(windows, experts))
        tokens_WE *= gpus / tokens_WE.sum(axis=1, keepdims=True)
        part_W = generator.dirichlet(np.ones(windows))
        worth_E = tokens_WE.mean(axis=0) / gpus * (0.0, 0.3, 1.0)[case % 3]
        peak_XW = (hosts_XGE @ (tokens_WE[:, :, None] / counts_XE.T).transpose(2, 1, 0)).max(axis=1)
        value_X = counts_XE @ worth_E - 0.7 * peak_XW @ part_W
        found = best_possible(shape, Layer(tokens_WE, part_W, 0.7, worth_E), nodes=10**7)
        assert found.is_optimum
        assert found.bound == pytest.approx(value_X.max(), rel=1e-7)
        assert found.experts_GS is not None
        counts_E = np.bincount(found.experts_GS.ravel(), minlength=experts)
        peak_W = (tokens_WE / counts_E)[:, found.experts_GS].sum(axis=2).max(axis=1)
        assert counts_E @ worth_E - 0.7 * peak_W @ part_W == pytest.approx(found.bound, rel=1e-7)
