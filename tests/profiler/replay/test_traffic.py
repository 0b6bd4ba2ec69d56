"""Requests made out of a trace, and their home GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placement.errors import BadOption, EmptyProfile, SourceCountMismatch
from profiler.errors import InputsDisagree
from profiler.recordings import AFFINITY, MIXED
from profiler.replay.traffic import assign_homes, read_traffic
from profiler.trace import CountChunk, TraceHeader
from tests.profiler.replay.traces import MemoryTrace, made_up, shipped


def test_requests_keep_their_rows_in_order_whatever_the_chunks_and_interleaving():
    whole = made_up([(3, 2), (1, 4), (5, 0)])
    chunk = whole.pieces[0]
    order = np.argsort(chunk.position_T, kind="stable")  # all first tokens, then all second ones, ...
    names = ("topk_LTK", "request_id_T", "position_T", "source_T", "domain_T", "phase_T", "step_T")
    pieces = []
    for part in np.array_split(order, 4):
        picked = {name: getattr(chunk, name)[..., part] for name in names if name != "topk_LTK"}
        pieces.append(replace(chunk, topk_LTK=chunk.topk_LTK[:, part], **picked))

    traffic, scattered = read_traffic(whole), read_traffic(replace(whole, pieces=tuple(pieces)))

    assert traffic.rows_Q.tolist() == [5, 5, 5]
    assert traffic.prompt_rows_Q.tolist() == [3, 1, 5]
    np.testing.assert_array_equal(scattered.experts_LRK, traffic.experts_LRK)
    np.testing.assert_array_equal(scattered.prompt_rows_Q, traffic.prompt_rows_Q)


def test_the_same_request_id_in_two_windows_is_two_requests():
    chunk = made_up([(2, 1)]).pieces[0]
    trace = MemoryTrace(made_up([(2, 1)]).header, (replace(chunk, window="a"), replace(chunk, window="b")))

    assert read_traffic(trace).rows_Q.tolist() == [3, 3]


def test_moe_layers_are_those_in_which_some_token_has_an_expert():
    assert read_traffic(made_up([(4, 1)], dense_layers=[0])).moe_layers() == (1, 2, 3)


def test_counts_cannot_be_served_again():
    counts = CountChunk("w", np.ones((1, 1, 4), dtype=np.int64))
    with pytest.raises(BadOption, match="needs a token trace"):
        read_traffic(MemoryTrace(TraceHeader("counts", 1, 4), (counts,)))


def test_a_trace_without_tokens_is_refused():
    with pytest.raises(EmptyProfile, match="nothing to replay"):
        read_traffic(MemoryTrace(TraceHeader("tokens", 1, 4, top_k=2), ()))


def test_an_expert_beyond_the_header_is_refused():
    trace = made_up([(4, 1)], experts=8)
    with pytest.raises(InputsDisagree, match="ids run from 0 to 3"):
        read_traffic(replace(trace, header=replace(trace.header, experts=4)))


@pytest.mark.parametrize(("gpus", "rule"), [(2, "measured"), (4, "round-robin")])
def test_recorded_homes_are_used_exactly_when_there_are_as_many_ranks_as_gpus(gpus, rule):
    traffic = read_traffic(shipped(AFFINITY))
    used, home_Q = assign_homes(traffic, gpus=gpus, homes=None)
    assert used == rule
    expected = traffic.source_Q if rule == "measured" else np.arange(64) % 4
    np.testing.assert_array_equal(home_Q, expected)


def test_recorded_homes_cannot_be_had_for_another_number_of_gpus():
    with pytest.raises(SourceCountMismatch, match="recorded on 2 ranks, not 4"):
        assign_homes(read_traffic(shipped(AFFINITY)), gpus=4, homes="measured")


def test_domains_stay_together_and_are_spread_by_their_tokens():
    traffic = read_traffic(shipped(MIXED))
    _, home_Q = assign_homes(traffic, gpus=4, homes="domain")
    for domain in range(16):
        assert len(set(home_Q[traffic.domain_Q == domain].tolist())) == 1
    tokens_G = np.bincount(home_Q, weights=traffic.rows_Q, minlength=4)
    largest_domain = np.bincount(traffic.domain_Q, weights=traffic.rows_Q).max()
    assert tokens_G.max() - tokens_G.min() <= largest_domain


def test_few_domains_share_the_gpus_among_them():
    traffic = read_traffic(made_up([(2, 0)] * 8, domains=[0, 1] * 4))
    _, home_Q = assign_homes(traffic, gpus=4, homes="domain")
    assert home_Q.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_domains_that_the_trace_does_not_know_are_refused():
    with pytest.raises(BadOption, match="names no domain"):
        assign_homes(read_traffic(made_up([(2, 0)])), gpus=2, homes="domain")
