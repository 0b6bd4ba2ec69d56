"""Demand from recordings: windows, home GPUs, what is held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import BadOption, CountOutOfRange, EmptyProfile
from placement.notice import Notice
from profiler import tally
from profiler.errors import BadCountShape, InputsDisagree
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.trace import NO_EXPERT, TokenChunk, TraceHeader
from profiler.window_by import WindowBy
from profiler.windows import DemandResult, build_demand
from tests.case_files import case, case_folder
from tests.profiler.recordings import DATA, ListedReader, codes, count_chunk, token_chunk

FILE = WindowBy()
TOKENS = TraceHeader(kind="tokens", layers=2, experts=8, top_k=2, source_ranks=2, domain_names=("law", "code"))
COUNTS = TraceHeader(kind="counts", layers=2, experts=4)


def by_name(result: DemandResult) -> dict[str, npt.NDArray[np.int64]]:
    return dict(zip(result.demand.window_names, result.demand.tokens_WLSE, strict=True))


def counts(*values: int, window: str = "w", layers: int = 2, **fields: Any) -> Any:
    """Return a chunk with the same counts in every layer."""
    return count_chunk([[values]] * layers, window=window, **fields)


def test_more_windows_than_can_be_planned_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MAX_WINDOWS", 3)
    chunks = [counts(1, 2, 3, 4, window=f"w{number}") for number in range(4)]
    with pytest.raises(BadOption, match=r"4 windows; at most 3"):
        build_demand([ListedReader(COUNTS, chunks)], window_by=FILE, gpus=2)
    assert build_demand([ListedReader(COUNTS, chunks[:3])], window_by=FILE, gpus=2).demand.windows == 3
    added_up = build_demand([ListedReader(COUNTS, chunks)], window_by=WindowBy.parse("none"), gpus=2)
    assert added_up.demand.window_names == ("all",)


# ---------------------------------------------------------------- --window-by


@pytest.mark.parametrize("text", ["file", "domain", "none"])
def test_plain_rules_are_parsed(text: str) -> None:
    assert WindowBy.parse(text) == WindowBy(text)


@pytest.mark.parametrize(
    ("text", "kind", "size"), [("steps:7", "steps", 7), ("seconds:2.5", "seconds", 2.5), ("steps:8.0", "steps", 8)]
)
def test_sized_rules_are_parsed(text: str, kind: Any, size: float) -> None:
    assert WindowBy.parse(text) == WindowBy(kind, size)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "File",
        "steps",
        "steps:",
        "steps:0",
        "steps:-1",
        "steps:2.5",
        "seconds:0",
        "seconds:nan",
        "hours:2",
        "steps:1 ",
    ],
)
def test_other_rules_are_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(BadOption, match=r"must be file, domain|above 0"):
        WindowBy.parse(text)


# ---------------------------------------------------------------- tokens


@st.composite
def traces(draw: st.DrawFn) -> list[TokenChunk]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    chunks = []
    for index in range(draw(st.integers(1, 4))):
        tokens = draw(st.integers(0, 9))
        topk = rng.integers(0, 9, (2, tokens, 2)).astype(np.uint16)
        topk[topk == 8] = NO_EXPERT
        chunks.append(
            token_chunk(
                topk,
                request_id_T=100 * index + rng.integers(0, 3, tokens),
                source_T=rng.integers(0, 2, tokens),
                domain_T=rng.integers(-1, 2, tokens),
                phase_T=rng.integers(0, 3, tokens),
                step_T=np.sort(rng.integers(0, 20, tokens)),
                window=draw(st.sampled_from(["", "x"])),
            )
        )
    return chunks


def naive(chunks: list[TokenChunk], key: Any, *, sources: int) -> dict[Any, npt.NDArray[np.int64]]:
    """Count one id after the other."""
    windows: dict[Any, npt.NDArray[np.int64]] = {}
    for chunk in chunks:
        for token in range(len(chunk.request_id_T)):
            name = key(chunk, token)
            if name is None:
                continue
            window = windows.setdefault(name, np.zeros((2, sources, 8), dtype=np.int64))
            for layer in range(2):
                for expert in chunk.topk_LTK[layer, token]:
                    if expert != NO_EXPERT:
                        window[layer, int(chunk.source_T[token]) if sources > 1 else 0, expert] += 1
    return {name: window for name, window in windows.items() if window.any()}


KEYS = {
    "file": lambda chunk, token: chunk.window or "listed",
    "none": lambda chunk, token: "all",
    "domain": lambda chunk, token: (*TOKENS.domain_names, "unknown domain")[chunk.domain_T[token]],
    "steps:5": lambda chunk, token: f"steps {chunk.step_T[token] // 5 * 5}-{chunk.step_T[token] // 5 * 5 + 4}",
}


@settings(max_examples=80)
@given(chunks=traces(), rule=st.sampled_from(sorted(KEYS)), measured=st.booleans())
def test_counting_equals_counting_one_by_one(chunks: list[TokenChunk], rule: str, measured: bool) -> None:
    reader = ListedReader(TOKENS, chunks)
    sources = "auto" if measured else "uniform"
    result = build_demand([reader], window_by=WindowBy.parse(rule), gpus=2, sources=sources)
    expected = naive(chunks, KEYS[rule], sources=2 if measured else 1)
    if not expected:
        with pytest.raises(EmptyProfile):
            result.demand.require_not_empty()
        return
    found = by_name(result)
    assert set(found) == set(expected)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert result.demand.sources == ("measured" if measured else "uniform")


@given(chunks=traces(), phase=st.sampled_from(["prefill", "decode"]))
def test_a_phase_keeps_its_tokens_only(chunks: list[TokenChunk], phase: Any) -> None:
    number = {"prefill": 1, "decode": 2}[phase]
    expected = naive(chunks, lambda chunk, token: "all" if chunk.phase_T[token] == number else None, sources=2)
    if not expected:
        return
    reader = ListedReader(TOKENS, chunks)
    result = build_demand([reader], window_by=WindowBy("none"), gpus=2, phase=phase)
    assert np.array_equal(by_name(result)["all"], expected["all"])


@given(chunks=traces(), share=st.floats(0.01, 0.99))
def test_held_out_requests_are_the_last_and_both_sides_have_some(chunks: list[TokenChunk], share: float) -> None:
    order = list(dict.fromkeys(request for chunk in chunks for request in chunk.request_id_T.tolist()))
    reader = ListedReader(TOKENS, chunks)
    if len(order) < 2:
        if order:
            with pytest.raises(BadOption, match="single request"):
                build_demand([reader], window_by=FILE, gpus=2, holdout=share)
        return
    held = min(max(round(share * len(order)), 1), len(order) - 1)
    late = set(order[-held:])
    result = build_demand([reader], window_by=WindowBy("none"), gpus=2, holdout=share)
    assert result.holdout_demand is not None
    for demand, chosen in ((result.demand, set(order) - late), (result.holdout_demand, late)):
        expected = naive(
            chunks,
            lambda chunk, token, chosen=chosen: "all" if chunk.request_id_T[token] in chosen else None,
            sources=2,
        )
        assert np.array_equal(demand.tokens_WLSE[0], expected.get("all", np.zeros((2, 2, 8))))


def test_domains_of_several_traces_are_one_window_each() -> None:
    one = ListedReader(TOKENS, [token_chunk([[[1, 2]]] * 2, domain_T=[1])], "one")
    other = TraceHeader(kind="tokens", layers=2, experts=8, top_k=2, domain_names=("code", "maths"))
    two = ListedReader(other, [token_chunk([[[1, 2], [3, 4]]] * 2, domain_T=[0, 1])], "two")
    result = build_demand([one, two], window_by=WindowBy("domain"), gpus=2, sources="uniform")
    assert {name: int(window.sum()) for name, window in by_name(result).items()} == {"code": 8, "maths": 4}


@pytest.mark.parametrize(
    ("rule", "message"), [("steps:5", "engine step"), ("seconds:5", "without times"), ("domain", "which domain")]
)
def test_windows_that_the_trace_does_not_have_are_refused(rule: str, message: str) -> None:
    header = TraceHeader(kind="tokens", layers=1, experts=8)
    with pytest.raises(BadOption, match=message):
        build_demand([ListedReader(header, [token_chunk([[[1]]])])], window_by=WindowBy.parse(rule), gpus=2)


def test_a_phase_that_nothing_has_is_refused() -> None:
    reader = ListedReader(COUNTS, [counts(1, 2, 3, 4)])
    with pytest.raises(BadOption, match="marked as decode"):
        build_demand([reader], window_by=FILE, gpus=2, phase="decode")


# ---------------------------------------------------------------- counts


def test_recorded_windows_stay_and_chunks_of_one_name_belong_together() -> None:
    reader = ListedReader(
        COUNTS, [counts(1, 0, 0, 0, window="a"), counts(0, 2, 0, 0, window="b"), counts(0, 0, 3, 0, window="a")]
    )
    result = build_demand([reader], window_by=FILE, gpus=2)
    assert {name: window[0, 0].tolist() for name, window in by_name(result).items()} == {
        "a": [1, 0, 3, 0],
        "b": [0, 2, 0, 0],
    }


def test_windows_of_one_name_in_two_inputs_stay_apart() -> None:
    one, two = (ListedReader(COUNTS, [counts(index, 1, 1, 1, window="w")], f"in{index}") for index in range(2))
    assert build_demand([one, two], window_by=FILE, gpus=2).demand.window_names == ("in0: w", "in1: w")


def test_steps_are_cut_across_chunks_and_inputs_have_their_own() -> None:
    steps = [counts(1, 1, 1, 1, steps=1) for _ in range(5)]
    one = build_demand([ListedReader(COUNTS, steps)], window_by=WindowBy("steps", 2), gpus=2)
    assert {name: int(window[0].sum()) for name, window in by_name(one).items()} == {
        "steps 0-1": 8,
        "steps 2-3": 8,
        "steps 4-5": 4,
    }
    two = build_demand(
        [ListedReader(COUNTS, steps, "x"), ListedReader(COUNTS, steps, "y")], window_by=WindowBy("steps", 10), gpus=2
    )
    assert two.demand.window_names == ("x: steps 0-9", "y: steps 0-9")


def test_seconds_are_cut_where_a_chunk_starts() -> None:
    chunks = [counts(1, 0, 0, 0, seconds=0.75) for _ in range(4)]
    result = build_demand([ListedReader(COUNTS, chunks)], window_by=WindowBy("seconds", 1.5), gpus=2)
    assert {name: int(window[0].sum()) for name, window in by_name(result).items()} == {
        "seconds 0-1.5": 2,
        "seconds 1.5-3": 2,
    }


@pytest.mark.parametrize("rule", ["steps:2", "seconds:2", "domain"])
def test_windows_that_counts_do_not_have_are_refused(rule: str) -> None:
    with pytest.raises(BadOption):
        build_demand([ListedReader(COUNTS, [counts(1, 1, 1, 1)])], window_by=WindowBy.parse(rule), gpus=2)


@given(windows=st.integers(2, 12), share=st.floats(0.01, 0.99), merge=st.booleans())
def test_held_out_windows_are_the_last(windows: int, share: float, merge: bool) -> None:
    chunks = [counts(index + 1, 0, 0, 0, window=str(index)) for index in range(windows)]
    rule = WindowBy("none" if merge else "file")
    result = build_demand([ListedReader(COUNTS, chunks)], window_by=rule, gpus=2, holdout=share)
    assert result.holdout_demand is not None
    held = min(max(round(share * windows), 1), windows - 1)
    assert result.holdout_demand.total_tokens == 2 * sum(range(windows - held + 1, windows + 1))
    assert result.demand.total_tokens + result.holdout_demand.total_tokens == windows * (windows + 1)
    assert result.holdout_demand.windows == (1 if merge else held)


def test_a_single_window_cannot_be_split_and_the_message_says_how_to_get_more() -> None:
    with pytest.raises(BadOption, match="steps:N"):
        build_demand([ListedReader(COUNTS, [counts(1, 1, 1, 1)])], window_by=FILE, gpus=2, holdout=0.5)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(BadOption, match="above 0 and below 1"):
        build_demand([ListedReader(COUNTS, [counts(1, 1, 1, 1)])], window_by=FILE, gpus=2, holdout=share)


def test_empty_windows_are_left_out_with_a_warning() -> None:
    reader = ListedReader(COUNTS, [counts(0, 0, 0, 0, window="a"), counts(1, 0, 0, 0, window="b")])
    result = build_demand([reader], window_by=FILE, gpus=2, sources="uniform")
    assert result.demand.window_names == ("b",)
    assert codes(result.notices) == ["WINDOWS_EMPTY"]


@pytest.mark.parametrize("chunks", [[], [counts(0, 0, 0, 0)], [counts(0, 0, 0, 0), counts(0, 0, 0, 0, window="v")]])
def test_nothing_recorded_is_an_empty_profile(chunks: Any) -> None:
    demand = build_demand([ListedReader(COUNTS, chunks)], window_by=FILE, gpus=2).demand
    with pytest.raises(EmptyProfile):
        demand.require_not_empty()


def test_p13_an_all_zero_dump_and_its_json_twin_are_empty_profiles(tmp_path: Any) -> None:
    (tmp_path / "zero.json").write_text('{"logical_count": [[[0, 0], [0, 0]]]}')
    for path in (case_folder("P13") / "dump.pt", tmp_path / "zero.json"):
        demand = build_demand(open_inputs([path], ReadOptions()), window_by=FILE, gpus=1).demand
        with pytest.raises(EmptyProfile) as refused:
            demand.require_not_empty()
        assert refused.value.code == case("P13")["expect"]["error_code"]


def test_p04_the_factor_between_two_recordings_is_kept() -> None:
    one, two = (
        build_demand(open_inputs([case_folder("P04") / name], ReadOptions()), window_by=FILE, gpus=2).demand
        for name in ("a.json", "b.json")
    )
    factor = case("P04")["expect"]["oracle"]["factor"]
    assert np.array_equal(one.tokens_WLSE * factor, two.tokens_WLSE)


def test_sums_beyond_64_bits_are_refused_instead_of_wrapping() -> None:
    largest = 2**61
    header = TraceHeader(kind="counts", layers=1, experts=4)
    readers = [ListedReader(header, [counts(largest, 0, 0, 0, layers=1)], str(index)) for index in range(3)]
    with pytest.raises(CountOutOfRange, match="add up"):
        build_demand(readers, window_by=WindowBy("none"), gpus=2)


def test_too_many_windows_are_refused_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MAX_DEMAND_BYTES", 8 * 2 * 4 * 3)
    chunks = [counts(1, 0, 0, 0, window=str(index)) for index in range(4)]
    build_demand([ListedReader(COUNTS, chunks[:3])], window_by=FILE, gpus=2)
    with pytest.raises(BadOption, match="more than 3 windows"):
        build_demand([ListedReader(COUNTS, chunks)], window_by=FILE, gpus=2)


# ---------------------------------------------------------------- sources and agreement


@pytest.mark.parametrize(
    ("ranks", "gpus", "sources", "expected", "notices"),
    [
        ([2], 2, "auto", "measured", []),
        ([2, 2], 2, "auto", "measured", []),
        ([2], 2, "uniform", "uniform", []),
        ([2], 4, "auto", "uniform", ["SOURCES_IGNORED"]),
        ([4, 2], 2, "auto", "uniform", ["SOURCES_IGNORED"]),
        ([None], 2, "auto", "uniform", ["SOURCES_UNKNOWN"]),
        ([2, None], 2, "auto", "uniform", ["SOURCES_UNKNOWN"]),
    ],
)
def test_home_gpus_are_used_only_when_every_input_knows_all(
    ranks: list[int | None], gpus: int, sources: str, expected: str, notices: list[str]
) -> None:
    readers = []
    for index, count in enumerate(ranks):
        header = TraceHeader(kind="counts", layers=1, experts=3, source_ranks=count)
        readers.append(ListedReader(header, [count_chunk([[[1, 2, 3]] * (count or 1)], "w")], str(index)))
    result = build_demand(readers, window_by=WindowBy("none"), gpus=gpus, sources=sources)
    assert result.demand.sources == expected
    assert codes(result.notices) == notices
    rows = sum(count or 1 for count in ranks)
    assert result.demand.tokens_WLE.tolist() == [[[rows, 2 * rows, 3 * rows]]]


def test_a_source_beyond_the_ranks_is_refused() -> None:
    reader = ListedReader(TOKENS, [token_chunk([[[1, 2]]] * 2, source_T=[5])])
    with pytest.raises(BadCountShape, match="rank 5"):
        build_demand([reader], window_by=FILE, gpus=2)


def test_an_unknown_mode_of_sources_is_refused() -> None:
    with pytest.raises(BadOption, match="auto or uniform"):
        build_demand([ListedReader(COUNTS, [])], window_by=FILE, gpus=2, sources="measured")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"layers": 3}, "decoder layers"), ({"experts": 5}, "experts"), ({"top_k": 3}, "experts per token")],
)
def test_inputs_of_different_models_are_refused(change: dict[str, int], message: str) -> None:
    common = {"layers": 2, "experts": 4, "top_k": 2}
    readers = [
        ListedReader(TraceHeader(kind="counts", **values), [], name)
        for name, values in (("a", common), ("b", {**common, **change}))
    ]
    with pytest.raises(InputsDisagree, match=f"a has . {message}, b has . {message}|a has .* {message}"):
        build_demand(readers, window_by=FILE, gpus=2)


def test_what_inputs_have_in_common_is_their_header() -> None:
    one = TraceHeader(kind="counts", layers=1, experts=2, engine="sglang", engine_version="0.5.16", model="m")
    two = TraceHeader(kind="counts", layers=1, experts=2, top_k=4, engine="sglang", engine_version="0.5.23", model="m")
    readers = [ListedReader(header, [counts(1, 1, layers=1)], str(index)) for index, header in enumerate((one, two))]
    header = build_demand(readers, window_by=FILE, gpus=2).header
    assert (header.top_k, header.engine, header.engine_version, header.model) == (4, "sglang", "", "m")


def test_warnings_of_readers_are_passed_on_once() -> None:
    notice = Notice("LAYERS_ASSUMED", "x")
    readers = [ListedReader(COUNTS, [counts(1, 1, 1, 1)], str(index), [notice]) for index in range(2)]
    assert codes(build_demand(readers, window_by=FILE, gpus=2, sources="uniform").notices) == ["LAYERS_ASSUMED"]


def test_a_recorded_trace_has_its_home_gpus() -> None:
    (reader,) = open_inputs([DATA / "tiny_affinity.npz"], ReadOptions())
    demand = build_demand([reader], window_by=FILE, gpus=2).demand
    with np.load(DATA / "tiny_affinity.npz") as arrays:
        source_T = arrays["req_source"][arrays["request_id"]]
        for rank in range(2):
            expected = np.bincount(arrays["topk"][3][source_T == rank].ravel(), minlength=32)
            assert demand.tokens_WLSE[0, 3, rank].tolist() == expected.tolist()
