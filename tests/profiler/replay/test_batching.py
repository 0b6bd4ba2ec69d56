"""The clock: every row once per pass, within the limits, the same for the same trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.replay.batching import Batch, ContinuousBatching
from profiler.replay.traffic import read_traffic
from tests.profiler.replay.traces import made_up

requests = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)).filter(any), min_size=1, max_size=9)


def batches(lengths, *, gpus=2, prefill_tokens=4, running_per_gpu=2, passes=1) -> list[Batch]:
    traffic = read_traffic(made_up(lengths))
    home_Q = np.arange(traffic.requests) % gpus
    batching = ContinuousBatching(
        traffic, home_Q, gpus=gpus, prefill_tokens=prefill_tokens, running_per_gpu=running_per_gpu, passes=passes
    )
    found = []
    while (batch := batching.next_batch()) is not None:
        found.append(batch)
    return found


@settings(max_examples=80, deadline=None)
@given(requests, st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2))
def test_every_row_is_computed_once_per_pass_in_order_at_home(lengths, gpus, prefill_tokens, running, passes):
    traffic = read_traffic(made_up(lengths))
    request_R = np.repeat(np.arange(traffic.requests), traffic.rows_Q)
    seen = batches(lengths, gpus=gpus, prefill_tokens=prefill_tokens, running_per_gpu=running, passes=passes)

    row_T = np.concatenate([batch.row_T for batch in seen])
    assert np.bincount(row_T, minlength=len(request_R)).tolist() == [passes] * len(request_R)
    np.testing.assert_array_equal(np.concatenate([batch.source_T for batch in seen]), request_R[row_T] % gpus)
    position_R = np.arange(len(request_R)) - traffic.first_row_Q[request_R]
    is_prompt_T = position_R[row_T] < traffic.prompt_rows_Q[request_R[row_T]]
    np.testing.assert_array_equal(np.concatenate([batch.decode_T for batch in seen]), ~is_prompt_T)
    for request in range(traffic.requests):
        steps = [step for step, batch in enumerate(seen) for row in batch.row_T if request_R[row] == request]
        rows = [row for batch in seen for row in batch.row_T if request_R[row] == request]
        assert steps == sorted(steps)
        assert passes > 1 or rows == sorted(rows)


@settings(max_examples=60, deadline=None)
@given(requests, st.integers(1, 3), st.integers(1, 5), st.integers(1, 3))
def test_a_ranks_pass_is_one_phase_within_its_limits(lengths, gpus, prefill_tokens, running):
    for batch in batches(lengths, gpus=gpus, prefill_tokens=prefill_tokens, running_per_gpu=running):
        for gpu in range(gpus):
            decodes = batch.decode_T[batch.source_T == gpu]
            assert len(set(decodes.tolist())) <= 1
            limit = running if decodes.any() else prefill_tokens
            assert len(decodes) <= limit


def test_long_prompts_are_cut_into_pieces_and_then_decoded_token_by_token():
    sizes = [(len(batch.row_T), bool(batch.decode_T.any())) for batch in batches([(10, 2)], gpus=1)]
    assert sizes == [(4, False), (4, False), (2, False), (1, True), (1, True)]


def test_a_full_rank_decodes_before_it_admits_more():
    sizes = [(len(batch.row_T), bool(batch.decode_T.any())) for batch in batches([(1, 2)] * 3, gpus=1)]
    assert sizes == [(2, False), (2, True), (2, True), (1, False), (1, True), (1, True)]


def test_for_ever_begins_the_trace_again_without_waiting_for_its_end():
    traffic = read_traffic(made_up([(3, 1)] * 2))
    batching = ContinuousBatching(
        traffic, np.zeros(2, dtype=np.int64), gpus=1, prefill_tokens=4, running_per_gpu=4, passes=None
    )
    row_T = np.concatenate([batching.next_batch().row_T for _ in range(200)])
    times = np.bincount(row_T)
    assert times.min() >= 20
    assert times.max() - times.min() <= 4


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_same_trace_gives_the_same_steps(gpus):
    first, second = (batches([(5, 3), (2, 7), (9, 1)], gpus=gpus) for _ in range(2))
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.row_T, other.row_T)
