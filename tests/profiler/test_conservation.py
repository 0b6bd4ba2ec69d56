"""Layers of one recording count the same number of routed tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.conservation import conservation_notices
from profiler.inputs import open_inputs, trace_facts
from profiler.readers.options import ReadOptions
from profiler.trace import TraceHeader
from profiler.windows import WindowBy, build_demand
from tests.case_files import case, case_folder
from tests.profiler.recordings import ListedReader, codes, token_chunk


def test_p03_the_layer_that_lost_picks_is_named() -> None:
    (reader,) = open_inputs([case_folder("P03") / "counts.json"], ReadOptions())
    oracle = case("P03")["expect"]["oracle"]
    result = build_demand([reader], window_by=WindowBy(), gpus=2)
    (notice,) = (notice for notice in result.notices if notice.code == "TOKEN_CONSERVATION")
    for layer in oracle["bad_layers"]:
        assert f"layer {layer} has 120" in notice.detail
    assert f"{oracle['expected_sum']} are right" in notice.detail
    assert "layer 0" not in notice.detail
    assert case("P03")["expect"]["error_code"] in [warning["code"] for warning in trace_facts(reader)["warnings"]]


@given(
    right=st.integers(1, 10**9),
    layers=st.integers(2, 100),
    dense=st.integers(0, 3),
    lost=st.dictionaries(st.integers(0, 99), st.integers(1, 10**9), max_size=20),
    known=st.booleans(),
)
def test_exactly_the_layers_that_differ_are_off(
    right: int, layers: int, dense: int, lost: dict[int, int], known: bool
) -> None:
    sums = np.full(layers, right)
    for layer, count in lost.items():
        if layer < layers:
            sums[layer] = max(right - count, 1)
    sums[:dense] = 0
    off = [layer for layer in range(dense, layers) if sums[layer] != right]
    notices = conservation_notices(sums[None], ["w"], [right if known else None])
    if len(off) * 2 >= layers - dense and not known:
        return  # without the number of tokens most layers decide
    assert bool(notices) == bool(off)
    for notice in notices:
        assert all(f"layer {layer} has {sums[layer]}" in notice.detail for layer in off[:8])
        assert len(notice.detail) < 700


def test_all_layers_that_lost_alike_show_only_when_tokens_are_known() -> None:
    sums = np.array([[0, 90, 90]])
    assert conservation_notices(sums, ["w"], [None]) == ()
    (notice,) = conservation_notices(sums, ["w"], [100])
    assert "layer 1 has 90, layer 2 has 90" in notice.detail
    assert "10.00%" in notice.detail


def test_the_window_that_is_furthest_off_is_shown() -> None:
    sums = np.array([[10, 10, 9], [10, 10, 10], [10, 5, 10]])
    (notice,) = conservation_notices(sums, ["a", "b", "c"], [None] * 3)
    assert "window 'c'" in notice.detail
    assert "one more window is off" in notice.detail


@pytest.mark.parametrize(("lost", "expected"), [(False, []), (True, ["TOKEN_CONSERVATION"])])
def test_token_traces_know_their_tokens(lost: bool, expected: list[str]) -> None:
    topk = np.random.default_rng(0).integers(0, 8, (3, 50, 2)).astype(np.uint16)
    if lost:
        topk[:, 10] = 0xFFFF  # a token whose picks are lost in all layers alike
    header = TraceHeader(kind="tokens", layers=3, experts=8, top_k=2)
    result = build_demand([ListedReader(header, [token_chunk(topk)])], window_by=WindowBy(), gpus=2, sources="uniform")
    assert codes(result.notices) == expected
