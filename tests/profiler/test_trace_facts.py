"""What ``moeplan trace info`` says of a recording."""

from __future__ import annotations

import json

import numpy as np
import pytest

from profiler.inputs import open_inputs, trace_facts
from profiler.readers.options import ReadOptions
from profiler.trace import TraceHeader
from tests.case_files import case, case_folder
from tests.profiler.recordings import DATA, ListedReader, count_chunk, token_chunk


def test_a_recorded_trace_is_described() -> None:
    (reader,) = open_inputs([DATA / "tiny_mixed.npz"], ReadOptions())
    facts = trace_facts(reader)
    with np.load(DATA / "tiny_mixed.npz") as arrays:
        topk, request_id = arrays["topk"], arrays["request_id"]
        share_LE = np.stack([np.bincount(layer.ravel(), minlength=32) for layer in topk]) * 32 / topk[0].size
        prompt_T = arrays["position"] < arrays["req_prompt_tokens"][request_id]
        domains = np.bincount(arrays["req_domain"][request_id], minlength=16)
        assert facts["domains"] == dict(zip(arrays["domain_names"].tolist(), domains.tolist(), strict=True))
    assert facts["tokens"] == topk.shape[1]
    assert facts["requests"] == 36
    assert facts["routed_tokens"] == topk.size
    assert facts["window_routed_tokens"] == {"tiny_mixed.npz": topk.size}
    assert facts["moe_layers"] == [0, 1, 2, 3, 4, 5]
    assert facts["tokens_by_phase"] == {"prefill": int(prompt_T.sum()), "decode": int((~prompt_T).sum())}
    layer, expert = np.unravel_index(int(share_LE.argmax()), share_LE.shape)
    assert facts["hottest_expert"] == {
        "layer": int(layer),
        "expert": int(expert),
        "times_even": pytest.approx(share_LE.max(), abs=1e-3),
    }
    assert facts["source_ranks"] == 2
    assert facts["warnings"] == []


def test_counts_are_described_by_window_and_steps() -> None:
    header = TraceHeader(
        kind="counts", layers=3, experts=2, top_k=1, engine="sglang", engine_version="0.5.23", model="m"
    )
    chunks = [
        count_chunk([[[0, 0]], [[3, 1]], [[2, 2]]], "a", steps=2),
        count_chunk([[[0, 0]], [[1, 3]], [[4, 0]]], "b", steps=3),
        count_chunk([[[0, 0]], [[4, 0]], [[0, 4]]], "a", steps=1),
    ]
    facts = trace_facts(ListedReader(header, chunks))
    assert facts["engine"] == "sglang 0.5.23"
    assert facts["moe_layers"] == [1, 2]
    assert facts["window_routed_tokens"] == {"a": 16, "b": 8}
    assert (facts["windows"], facts["steps"], facts["routed_tokens"]) == (2, 6, 24)
    assert facts["hottest_expert"] == {"layer": 1, "expert": 0, "times_even": pytest.approx(1.333, abs=1e-3)}
    assert "tokens" not in facts


def test_p13_an_empty_recording_is_warned_of() -> None:
    (reader,) = open_inputs([case_folder("P13") / "dump.pt"], ReadOptions())
    facts = trace_facts(reader)
    assert facts["routed_tokens"] == case("P13")["expect"]["oracle"]["sum"]
    assert case("P13")["expect"]["error_code"] in [warning["code"] for warning in facts["warnings"]]
    assert facts["hottest_expert"] is None


def test_p04_the_sums_show_the_factor() -> None:
    one, two = (trace_facts(*open_inputs([case_folder("P04") / name], ReadOptions())) for name in ("a.json", "b.json"))
    assert two["routed_tokens"] == case("P04")["expect"]["oracle"]["factor"] * one["routed_tokens"]
    assert one["hottest_expert"] == two["hottest_expert"]


def test_unknown_sources_domains_and_phases_are_no_error() -> None:
    header = TraceHeader(kind="tokens", layers=1, experts=4, top_k=1, domain_names=("law",))
    facts = trace_facts(
        ListedReader(header, [token_chunk([[[1], [2]]], domain_T=[0, -1]), token_chunk(np.zeros((1, 0, 1)))])
    )
    assert facts["domains"] == {"law": 1}
    assert facts["tokens_by_source"] == []
    assert facts["tokens_by_phase"] == {"unknown": 2}
    assert facts["steps"] is None
    assert json.loads(json.dumps(facts)) == facts
