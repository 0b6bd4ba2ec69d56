"""Predicted times where copies are counted on a token trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.baselines import BASELINES
from placement.bounds import step_time_bound
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import count_copies, moe_layer_time
from placement.solver import solve
from placement.solver.deadline import Deadline
from placement.solver.step_time.counted import CountedTokens
from placement.solver.step_time.layer import layer_times
from placement.solver.step_time.search import LayerSearch
from placement.step_time import Step
from placement.token_sample import TokenSample
from tests.placement.hardware.profiles import EXPERT, PROFILE
from tests.placement.solver.traffic.problems import grouped_tokens, problem_of

STEP = Step(PROFILE, "prefill", EXPERT, top_k=3, tokens_per_gpu=10)
MOST = 2**20


def problem(*, gpus: int = 4, nodes: int = 1, slots: int = 5, seed: int = 0, **tokens: float) -> Problem:
    made = grouped_tokens(seed=seed, count=200, **tokens)
    asked = problem_of(made, gpus=gpus, slots_per_gpu=slots, nodes=nodes)
    return replace(asked, objective=Objective.STEP_TIME, step=STEP)


def seconds(asked: Problem, layout: Layout) -> float:
    assert asked.step is not None
    assert asked.tokens is not None
    copies = count_copies(
        {"": layout}, [asked.tokens.tokens], asked.topology, dispatch=asked.dispatch, windows=asked.demand.windows
    )
    return moe_layer_time(
        layout, asked.demand, asked.topology, dispatch=asked.dispatch, step=asked.step, copies=copies[""]
    ).moe_layer_s


@st.composite
def _problems(draw: st.DrawFn) -> Problem:
    nodes, local = draw(st.sampled_from([(1, 2), (1, 4), (2, 2), (3, 2)]))
    return problem(
        gpus=nodes * local,
        nodes=nodes,
        slots=draw(st.integers(-(-16 // (nodes * local)), 9)),
        seed=draw(st.integers(0, 99)),
        homes=draw(st.sampled_from([0, nodes * local])),
        windows=draw(st.integers(1, 3)),
    )


@settings(max_examples=40, deadline=None)
@given(asked=_problems(), seed=st.integers(0, 99))
def test_the_search_counts_as_the_ruler_does(asked: Problem, seed: int) -> None:
    """Also after exchanges, which change the rows of two experts' tokens."""
    assert asked.step is not None
    assert asked.tokens is not None
    layout = BASELINES["random"](asked, seed=seed)
    if layout.duplicated_slots():
        return
    rows_LP, found = layout.slot_to_expert_LP.astype(np.int64).copy(), []
    for layer in asked.demand.moe_layers:
        tokens = CountedTokens.of_layer(
            asked.tokens.tokens, layer, windows=asked.demand.windows, topology=asked.topology, most_numbers=MOST
        )
        slots_GP = rows_LP[layer].reshape(asked.topology.gpus, asked.slots_per_gpu)
        search = LayerSearch.start(layer_times(asked, asked.step, layer), slots_GP, tokens)
        search.improve(rounds=4, seed=seed, deadline=Deadline.after(None))
        rows_LP[layer] = search.slots_GP.ravel()
        found.append(search.seconds)
    improved = Layout(rows_LP.astype(np.int32), gpus=asked.topology.gpus, experts=asked.demand.experts)
    assert float(np.mean(found)) == pytest.approx(seconds(asked, improved), rel=1e-9)
    assert seconds(asked, improved) <= seconds(asked, layout) * (1 + 2e-3)


@settings(max_examples=60, deadline=None)
@given(asked=_problems(), seed=st.integers(0, 99))
def test_no_layout_is_below_the_bound(asked: Problem, seed: int) -> None:
    layout = BASELINES["random"](asked, seed=seed)
    assert seconds(asked, layout) >= step_time_bound(asked).seconds * (1 - 1e-9)


@pytest.mark.parametrize("homes", [0, 4])
def test_tokens_prove_more_than_counts(homes: int) -> None:
    """Their experts come together by chance, so most copies cannot be saved."""
    asked = problem(loyalty=0.0, homes=homes, slots=4)
    assert step_time_bound(asked).seconds > step_time_bound(replace(asked, tokens=None)).seconds
    assert "recorded tokens" in step_time_bound(asked).relaxation


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_plan_is_as_fast_on_its_tokens_as_every_other_plan(nodes: int) -> None:
    asked = problem(nodes=nodes, windows=2)
    solution = solve(asked)
    others = [make(asked, seed=0) for make in BASELINES.values()]
    others += [solution.beside["locality"], solution.beside["traffic"]]
    fastest = seconds(asked, solution.layout)
    assert all(fastest <= seconds(asked, layout) * (1 + 1e-9) for layout in others)
    assert solution.bound.moe_layer_s is not None
    assert solution.bound.moe_layer_s <= fastest


def test_tokens_that_come_in_groups_are_planned_for_as_such() -> None:
    tokens = grouped_tokens(count=400, loyalty=50.0)
    asked = replace(problem_of(tokens, gpus=4, slots_per_gpu=5), objective=Objective.STEP_TIME, step=STEP)
    counted, expected = solve(asked), solve(replace(asked, tokens=None))
    assert seconds(asked, counted.layout) < 0.98 * seconds(asked, expected.layout)


def test_where_tokens_travel_once_per_expert_they_change_nothing() -> None:
    asked = problem()
    asked = replace(asked, step=replace(STEP, phase="decode"))
    assert not asked.counts_copies
    assert solve(asked).layout == solve(replace(asked, tokens=None)).layout
    assert not replace(asked, dispatch=Dispatch.EVEN, step=STEP).counts_copies


def test_a_sample_proves_nothing_about_copies_and_is_named() -> None:
    asked = problem()
    assert asked.tokens is not None
    sampled = replace(asked, tokens=TokenSample(asked.tokens.tokens, recorded_tokens=1000))
    bound = step_time_bound(sampled)
    assert bound.seconds < step_time_bound(asked).seconds
    assert "tokens" not in bound.relaxation
    assert "TOKENS_SAMPLED" in {notice.code for notice in solve(sampled).notices}


def test_a_window_without_tokens_is_expected_from_counts() -> None:
    asked = problem(windows=2)
    assert asked.tokens is not None
    first = asked.tokens.tokens.pick(asked.tokens.tokens.window_T == 0)
    asked = replace(asked, tokens=TokenSample(first, recorded_tokens=first.tokens))
    layout = BASELINES["trivial"](asked, seed=0)
    layer = asked.demand.moe_layers[0]
    tokens = CountedTokens.of_layer(first, layer, windows=2, topology=asked.topology, most_numbers=MOST)
    assert tokens.tokens_W.tolist() == [100, 0]
    found = [
        LayerSearch.start(
            layer_times(asked, STEP, layer),
            layout.slot_to_expert_LP[layer].reshape(4, -1).astype(np.int64),
            CountedTokens.of_layer(first, layer, windows=2, topology=asked.topology, most_numbers=MOST),
        ).seconds
        for layer in asked.demand.moe_layers
    ]
    assert float(np.mean(found)) == pytest.approx(seconds(asked, layout), rel=1e-9)
