"""With a running layout: nothing moves for nothing, and little for little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from placement.demand import Demand
from placement.diff import diff
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import LocalScope, Objective, Problem
from placement.solver import solve
from placement.topology import Topology
from tests.placement.solver.judging import local_share, localises, worst_window
from tests.placement.solver.problems import OBJECTIVES, problems

ABOUT_EQUAL = 2e-3
"""A plan may give up a thousandth to move less; and a search from elsewhere may end a little elsewhere."""


def skewed_tokens(seed: int, *, windows: int = 1, layers: int = 4, sources: int = 1, experts: int = 32) -> np.ndarray:
    """Counts as routers make them: few hot experts, others in every layer; layer 0 is dense."""
    generator = np.random.default_rng(seed)
    heat_LE = generator.lognormal(0, 0.8, (layers, experts))
    noise_WLSE = generator.lognormal(0, 0.3, (windows, layers, sources, experts))
    tokens_WLSE = (heat_LE[None, :, None, :] * noise_WLSE * 1000).astype(int)
    tokens_WLSE[:, 0] = 0
    return tokens_WLSE


def demand_of(tokens_WLSE: np.ndarray, *, measured: bool) -> Demand:
    names = tuple(f"window {index}" for index in range(len(tokens_WLSE)))
    return Demand(tokens_WLSE, "measured" if measured else "uniform", names)


KINDS = {
    "balance": (Topology(8), 5, Objective.BALANCE, False),
    "locality": (Topology(8), 6, Objective.LOCALITY, False),
    "balance on nodes": (Topology(8, 2), 5, Objective.BALANCE, False),
    "locality of measured sources": (Topology(6), 8, Objective.LOCALITY, True),
    "balance of measured sources": (Topology(6, 2), 7, Objective.BALANCE, True),
}


def example(kind: str, *, seed: int = 1) -> Problem:
    topology, slots_per_gpu, objective, measured = KINDS[kind]
    tokens_WLSE = skewed_tokens(seed, windows=2, sources=topology.gpus if measured else 1)
    return Problem(
        demand_of(tokens_WLSE, measured=measured), topology, slots_per_gpu, objective=objective, max_imbalance=1.1
    )


def drifted(problem: Problem, *, seed: int) -> Problem:
    """The same traffic some time later: every count up to a third more or less."""
    tokens_WLSE = problem.demand.tokens_WLSE
    factor = np.random.default_rng(seed).uniform(0.75, 1.33, tokens_WLSE.shape)
    return replace(problem, demand=replace(problem.demand, tokens_WLSE=(tokens_WLSE * factor).astype(int)))


def moved(problem: Problem, layout: Layout, running: Layout) -> int:
    return diff(running, layout, problem.topology).moved_slots


def worth(problem: Problem, layout: Layout) -> float:
    """The figure that the objective asks for, larger is better."""
    if localises(problem):
        share = local_share(problem, layout)
        assert share is not None
        return share
    return 1 / worst_window(problem, layout)


@pytest.mark.parametrize("kind", KINDS)
def test_unchanged_demand_moves_nothing(kind: str) -> None:
    problem = example(kind)
    running = solve(problem).layout
    again = solve(replace(problem, current=running)).layout
    assert again.hash == running.hash


@settings(max_examples=40)
@given(problem=problems())
def test_unchanged_demand_moves_nothing_in_any_corner(problem: Problem) -> None:
    running = solve(replace(problem, current=None)).layout
    again = solve(replace(problem, current=running)).layout
    assert again.hash == running.hash
    assert moved(problem, again, running) == 0


@settings(max_examples=30)
@given(problem=problems())
def test_slots_keep_their_order(problem: Problem) -> None:
    """Shuffled slots of a good layout are as good: they stay as they are, and an expert that stays keeps its slot."""
    assume(problem.current is not None)
    assert problem.current is not None
    layout = solve(problem).layout
    assert diff(problem.current, layout).changed_slots == diff(problem.current, layout).moved_slots


@pytest.mark.parametrize("kind", KINDS)
def test_changed_demand_moves_less_for_as_much(kind: str) -> None:
    """Two changes of traffic: neither moves more slots than planning afresh, together they move fewer."""
    before = example(kind)
    running = solve(before).layout
    moved_afresh, moved_from_running = [], []
    for seed in (7, 8):
        after = drifted(before, seed=seed)
        afresh, kept = solve(after).layout, solve(replace(after, current=running)).layout
        assert worth(after, kept) >= worth(after, afresh) * (1 - ABOUT_EQUAL)
        if localises(after):
            assert worst_window(after, kept) <= max(after.max_imbalance, worst_window(after, afresh)) * (1 + 1e-9)
        moved_afresh.append(moved(after, afresh, running))
        moved_from_running.append(moved(after, kept, running))
    assert all(kept <= afresh for kept, afresh in zip(moved_from_running, moved_afresh, strict=True))
    assert sum(moved_from_running) < sum(moved_afresh)


def test_a_change_of_one_layer_moves_that_layer_only() -> None:
    problem = example("balance")
    running = solve(problem).layout
    tokens_WLSE = problem.demand.tokens_WLSE.copy()
    tokens_WLSE[:, 2] = tokens_WLSE[:, 2, :, ::-1] * 4
    after = replace(problem, demand=replace(problem.demand, tokens_WLSE=tokens_WLSE), current=running)
    layout = solve(after).layout
    assert worst_window(after, layout) < worst_window(after, running)
    moved_L = diff(running, layout).moved_L
    assert moved_L[2] > 0
    assert moved_L[0] == 0
    assert moved_L[2] > moved_L[1] + moved_L[3]


class TestDenseRows:
    """Layers without demand: the trivial row without a running layout, the running row with one."""

    problem = Problem(Demand.uniform([[0, 0, 0], [5, 3, 1], [0, 0, 0]]), Topology(2), 2)
    running = Layout(np.array([[2, 0, 1, 2], [0, 1, 2, 0], [1, 2, 0, 1]]), gpus=2, experts=3)

    def test_trivial_without_a_running_layout(self) -> None:
        rows = solve(self.problem).layout.slot_to_expert_LP
        assert rows[0].tolist() == rows[2].tolist() == [0, 1, 2, 0]

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_kept_with_one(self, objective: Objective) -> None:
        rows = solve(replace(self.problem, objective=objective, current=self.running)).layout.slot_to_expert_LP
        assert rows[0].tolist() == [2, 0, 1, 2]
        assert rows[2].tolist() == [1, 2, 0, 1]

    def test_kept_even_when_a_gpu_holds_an_expert_twice_there(self) -> None:
        running = Layout(np.array([[2, 2, 1, 0], [0, 1, 2, 0], [1, 2, 0, 1]]), gpus=2, experts=3)
        rows = solve(replace(self.problem, current=running)).layout.slot_to_expert_LP
        assert rows[0].tolist() == [2, 2, 1, 0]


@pytest.mark.parametrize("dispatch", Dispatch)
@pytest.mark.parametrize("scope", LocalScope)
def test_a_running_layout_with_duplicates_is_repaired(dispatch: Dispatch, scope: LocalScope) -> None:
    """A layout from the engine's own balancer may hold an expert twice on a GPU: it is no plan to stay with."""
    running = Layout(np.array([[0, 0, 1, 2, 2, 3, 3, 1]]), gpus=4, experts=4)
    problem = Problem(
        Demand.uniform([[9, 5, 3, 3]]), Topology(4, 2), 2, dispatch=dispatch, local_scope=scope, current=running
    )
    assert solve(problem).layout.duplicated_slots() == 0
