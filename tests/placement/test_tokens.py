"""Routed tokens one by one: the values, and bounded samples of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.errors import BadOption, BadTokens
from placement.problem import Problem
from placement.step_counts import StepCounts
from placement.token_sample import TokenSample, take_sample
from placement.tokens import NO_EXPERT, UNKNOWN_STEP, Tokens, WindowTokens
from placement.topology import Topology
from tests.placement.token_traces import cut, some_tokens


def test_tokens_are_read_only_and_keep_their_figures():
    tokens = some_tokens([[[0, 1], [2, NO_EXPERT]], [[NO_EXPERT, NO_EXPERT]] * 2], experts=3)

    assert (tokens.layers, tokens.tokens, tokens.top_k, tokens.sources) == (2, 2, 2, "uniform")
    assert tokens.moe_layers == (0,)
    with pytest.raises(ValueError):
        tokens.experts_LTK[0, 0, 0] = 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"experts": 2}, r"layer 0, token 1, column 0 names expert 2; ids run from 0 to 1"),
        ({"experts_LTK": np.zeros((1, 2), dtype=np.uint16)}, r"\[layers, tokens, k\] of uint16"),
        ({"experts_LTK": np.zeros((1, 2, 1), dtype=np.int64)}, r"of int64; \[layers, tokens, k\]"),
        ({"window_T": np.array([0])}, r"window_T has shape \(1,\)"),
        ({"window_T": np.array([0, -1])}, r"token 1 has the window -1"),
        ({"home_T": np.array([0, -2])}, r"token 1 has the home -2"),
        ({"step_T": np.array([0.5, 1])}, r"step_T has shape \(2,\) of float64"),
    ],
)
def test_tokens_that_do_not_fit_together_are_refused(change, said):
    with pytest.raises(BadTokens, match=said):
        replace(some_tokens([[[0, 1], [2, 1]]], experts=3), **change)


def _problem(**fields):
    demand = Demand.uniform([[[1, 1, 1, 1]]])
    tokens = some_tokens([[[0, 1], [2, 3]]], experts=4)
    return Problem(demand, Topology(2), 2, tokens=TokenSample(replace(tokens, **fields), recorded_tokens=2))


def test_a_problem_takes_tokens_that_fit_its_demand():
    assert _problem().tokens.is_whole
    with pytest.raises(BadTokens, match="measured sources, the demand uniform"):
        _problem(home_T=np.array([0, 1]))
    with pytest.raises(BadTokens, match="in window 1; the demand has windows 0 to 0"):
        _problem(window_T=np.array([0, 1]))
    with pytest.raises(BadTokens, match="1 layers x 5 experts"):
        _problem(experts=5)
    measured = Demand(np.ones((1, 1, 2, 4), dtype=np.int64), "measured", ("w",))
    at_home = some_tokens([[[0, 1], [2, 3]]], experts=4, home=[0, 2])
    with pytest.raises(BadTokens, match="token 1 lives on GPU 2; the topology has GPUs 0 to 1"):
        Problem(measured, Topology(2), 2, tokens=TokenSample(at_home, recorded_tokens=2))


def test_a_sample_is_no_larger_than_what_was_recorded():
    tokens = some_tokens([[[0], [1]]], experts=2)
    assert not TokenSample(tokens, recorded_tokens=3).is_whole
    with pytest.raises(BadTokens, match="2 tokens was taken from 1"):
        TokenSample(tokens, recorded_tokens=1)


# ------------------------------------------------------------------------------------------------------- samples


def _trace(requests: int, *, seed: int = 0, **fields) -> Tokens:
    generator = np.random.default_rng(seed)
    request = np.repeat(np.arange(requests), generator.integers(1, 6, requests))
    topk = generator.integers(0, 6, (2, len(request), 2))
    return some_tokens(topk, experts=6, request=request, step=np.arange(len(request)) % 11, **fields)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 30), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_sample_holds_whole_requests_and_does_not_depend_on_the_pieces(requests, most, size, seed):
    trace = _trace(requests, seed=seed)

    sample = take_sample(cut(trace, size), gpus=2, most_tokens=most, step_bytes=200, seed=seed)

    assert sample.recorded_tokens == trace.tokens
    assert 1 <= sample.tokens.tokens <= most
    kept = np.isin(trace.request_T, sample.tokens.request_T)
    if sample.tokens.tokens < most or len(np.unique(sample.tokens.request_T)) > 1:
        np.testing.assert_array_equal(sample.tokens.experts_LTK, trace.experts_LTK[:, kept])
    again = take_sample([trace], gpus=2, most_tokens=most, step_bytes=200, seed=seed)
    np.testing.assert_array_equal(sample.tokens.request_T, again.tokens.request_T)
    np.testing.assert_array_equal(sample.steps.tokens_ZLSE, again.steps.tokens_ZLSE)


def test_every_request_is_as_likely_to_be_in_the_sample():
    trace = _trace(40)
    times = np.zeros(40)
    for seed in range(200):
        sample = take_sample([trace], gpus=1, most_tokens=trace.tokens // 2, seed=seed)
        times[np.unique(sample.tokens.request_T)] += 1
    # 200 draws at about one half: 5 standard deviations are 35.
    assert times.min() > 60
    assert times.max() < 140


def test_of_a_request_that_is_too_long_the_first_tokens_are_kept():
    trace = some_tokens([[[token % 4] for token in range(9)]], experts=4, request=[7] * 9)
    sample = take_sample(cut(trace, 2), gpus=1, most_tokens=5)
    np.testing.assert_array_equal(sample.tokens.experts_LTK, trace.experts_LTK[:, :5])
    with pytest.raises(BadOption, match="a sample of -1 tokens"):
        take_sample([trace], gpus=1, most_tokens=-1)


def test_nothing_recorded_is_no_sample():
    assert take_sample([], gpus=1) is None
    assert take_sample([some_tokens(np.zeros((1, 0, 1)), experts=1)], gpus=1) is None


def test_a_window_of_a_trace_is_a_trace_of_its_own():
    trace = some_tokens([[[0], [1], [2], [3]]], experts=4, window=[1, 0, 1, 0])
    alone = WindowTokens(cut(trace, 3), 1)
    for _ in range(2):
        assert [piece.experts_LTK.ravel().tolist() for piece in alone] == [[0, 2]]
    assert [piece.window_T.tolist() for piece in alone] == [[0, 0]]


# ---------------------------------------------------------------------------------------------------------- steps


def test_steps_are_counted_across_pieces_by_home():
    trace = some_tokens(
        [[[0, 1], [0, 2], [0, NO_EXPERT], [1, 2]]],
        experts=3,
        home=[0, 1, 1, 0],
        step=[5, 4, 5, UNKNOWN_STEP],
        phase=[2, 2, 1, 2],
    )
    steps = take_sample(cut(trace, 1), gpus=2).steps
    np.testing.assert_array_equal(steps.tokens_ZLSE, [[[[0, 0, 0], [1, 0, 1]]], [[[1, 1, 0], [1, 0, 0]]]])
    np.testing.assert_array_equal(steps.phase_Z, [2, 0])
    assert (steps.recorded_steps, steps.sources) == (2, "measured")


def test_without_step_numbers_there_are_no_steps():
    assert take_sample([some_tokens([[[0]]], experts=1)], gpus=1).steps is None


def test_steps_are_bounded_and_whole():
    trace = _trace(300)
    all_steps = take_sample([trace], gpus=1).steps
    each = all_steps.tokens_ZLSE[0].nbytes
    some = take_sample(cut(trace, 7), gpus=1, step_bytes=3 * each).steps
    assert (some.steps, some.recorded_steps) == (3, 11)
    whole = {step.tobytes() for step in all_steps.tokens_ZLSE}
    assert all(step.tobytes() in whole for step in some.tokens_ZLSE)
    assert take_sample(cut(trace, 7), gpus=1, step_bytes=1).steps.steps == 1


def test_step_counts_that_contradict_each_other_are_refused():
    steps = take_sample([_trace(5)], gpus=1).steps
    with pytest.raises(BadTokens, match="uniform sources have one row, step counts have 2"):
        StepCounts(np.zeros((1, 1, 2, 1), dtype=np.uint32), np.zeros(1), np.zeros(1), 1, "uniform")
    with pytest.raises(BadTokens, match="out of 0 recorded"):
        replace(steps, recorded_steps=0)
    with pytest.raises(BadTokens, match="of int64"):
        replace(steps, tokens_ZLSE=steps.tokens_ZLSE.astype(np.int64))
