"""moeplan traces: what goes in comes out, and files that are no trace are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.notice import Notice
from profiler.errors import (
    ArchiveInflates,
    BadCountShape,
    InputsDisagree,
    OutputNotWritable,
    TraceVersionUnknown,
    UnknownFormat,
    UnreadableDump,
)
from profiler.inputs import open_inputs
from profiler.readers import parquet as parquet_reader
from profiler.readers.options import ReadOptions
from profiler.readers.parquet import open_parquet
from profiler.trace import NO_EXPERT, CountChunk, TokenChunk, TraceHeader
from profiler.writers import parquet as parquet_writer
from profiler.writers.parquet import import_trace
from tests.profiler.recordings import DATA, ListedReader, codes, count_chunk, shape, token_chunk, tokens_of

OPTIONS = ReadOptions()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parquet")


# ---------------------------------------------------------------- round trips


@st.composite
def token_readers(draw: st.DrawFn) -> ListedReader:
    layers, width = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dense = draw(st.sets(st.integers(0, layers - 1)))
    chunks = []
    for _ in range(draw(st.integers(0, 4))):
        tokens = draw(st.integers(0, 7))
        topk = rng.integers(0, 9, (layers, tokens, width))
        topk[topk == 8] = NO_EXPERT
        topk[sorted(dense)] = NO_EXPERT
        chunks.append(
            token_chunk(
                topk,
                request_id_T=rng.integers(0, 5, tokens),
                position_T=rng.integers(-1, 9, tokens),
                source_T=rng.integers(0, 2, tokens),
                domain_T=rng.integers(-1, 2, tokens),
                phase_T=rng.integers(0, 3, tokens),
                step_T=rng.integers(-1, 50, tokens),
                window=draw(st.sampled_from(["", "x", "y"])),
            )
        )
    header = TraceHeader(
        kind="tokens", layers=layers, experts=8, top_k=width, source_ranks=2, engine="sglang", domain_names=("a", "b")
    )
    return ListedReader(header, chunks)


def by_window(reader: Any, domains: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return a token trace's columns by window, domains by name."""
    windows: dict[str, list[TokenChunk]] = {}
    for chunk in reader.chunks():
        if len(chunk.request_id_T):
            windows.setdefault(chunk.window or reader.name, []).append(chunk)
    named = np.array([*domains, "unknown"])
    return {
        window: {
            "topk": np.concatenate([chunk.topk_LTK for chunk in chunks], axis=1).tolist(),
            "domain": named[np.concatenate([chunk.domain_T for chunk in chunks])].tolist(),
            **{
                name: np.concatenate([getattr(chunk, name) for chunk in chunks]).tolist()
                for name in ("position_T", "source_T", "phase_T", "step_T", "request_id_T")
            },
        }
        for window, chunks in windows.items()
    }


@settings(max_examples=60)
@given(reader=token_readers(), values_per_group=st.integers(1, 60))
def test_tokens_come_back_whatever_the_chunks_and_row_groups(
    scratch: Path, reader: ListedReader, values_per_group: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_writer, "VALUES_PER_ROW_GROUP", values_per_group)
        import_trace([reader], scratch / "t.parquet")
    again = open_parquet(scratch / "t.parquet", OPTIONS)
    assert again.header == reader.header
    assert by_window(again, ("a", "b")) == by_window(reader, ("a", "b"))


@settings(max_examples=60)
@given(data=st.data())
def test_counts_come_back_with_steps_seconds_and_phases(scratch: Path, data: st.DataObject) -> None:
    ranks = data.draw(st.sampled_from([None, 1, 3]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    chunks = [
        count_chunk(
            rng.integers(0, 2**40, (4, ranks or 1, 5)) * rng.integers(0, 2, (4, ranks or 1, 1)),
            window=data.draw(st.sampled_from(["x", "y"])),
            steps=data.draw(st.integers(0, 9)),
            seconds=data.draw(st.floats(0, 1e6)),
            phase=data.draw(st.sampled_from(["prefill", "decode", "mixed"])),
        )
        for _ in range(data.draw(st.integers(0, 5)))
    ]
    reader = ListedReader(TraceHeader(kind="counts", layers=4, experts=5, top_k=2, source_ranks=ranks), chunks)
    import_trace([reader], scratch / "c.parquet")
    again = open_parquet(scratch / "c.parquet", OPTIONS)
    assert again.header == reader.header
    read = [chunk for chunk in again.chunks() if isinstance(chunk, CountChunk)]
    assert len(read) == len(chunks)
    for one, other in zip(chunks, read, strict=True):
        assert np.array_equal(one.tokens_LSE, other.tokens_LSE)
        assert (one.window, one.steps, one.seconds, one.phase) == (
            other.window,
            other.steps,
            other.seconds,
            other.phase,
        )


def test_a_recorded_trace_comes_back_and_dense_layers_take_no_column(tmp_path: Path) -> None:
    options = ReadOptions(model=shape(8, 32, dense=2, top_k=4))
    (reader,) = open_inputs([DATA / "tiny_mixed.npz"], options)
    facts = import_trace([reader], tmp_path / "t.parquet")
    again = open_parquet(tmp_path / "t.parquet", OPTIONS)
    expected, read = tokens_of(reader), tokens_of(again)
    for name, values in expected.items():
        assert np.array_equal(values, read[name]), name
    names = pq.read_schema(tmp_path / "t.parquet").names
    assert [name for name in names if name.startswith("layer_")] == [f"layer_{layer}" for layer in range(2, 8)]
    assert again.header == reader.header
    assert facts["tokens"] == len(expected["request_id_T"])
    assert facts["size_bytes"] == (tmp_path / "t.parquet").stat().st_size


def test_several_inputs_keep_their_windows_domains_and_requests_apart(tmp_path: Path) -> None:
    one = ListedReader(
        TraceHeader(kind="tokens", layers=1, experts=8, domain_names=("law", "code")),
        [token_chunk([[[1], [2]]], request_id_T=[0, 1], domain_T=[0, 1])],
        name="run.npz",
    )
    two = ListedReader(
        TraceHeader(kind="tokens", layers=1, experts=8, domain_names=("code", "maths")),
        [token_chunk([[[3], [4], [5]]], request_id_T=[0, 0, 7], domain_T=[0, -1, 1])],
        name="run.npz",
    )
    import_trace([one, two], tmp_path / "t.parquet")
    again = open_parquet(tmp_path / "t.parquet", OPTIONS)
    assert again.header.domain_names == ("law", "code", "maths")
    read = by_window(again, again.header.domain_names)
    assert list(read) == ["run.npz", "run.npz (2)"]
    assert read["run.npz"]["domain"] == ["law", "code"]
    assert read["run.npz (2)"]["domain"] == ["code", "unknown", "maths"]
    assert read["run.npz (2)"]["request_id_T"] == [2, 2, 9]


def test_a_layer_or_a_column_that_shows_up_late_is_not_lost(tmp_path: Path) -> None:
    first = token_chunk(np.full((2, 3, 1), [[[4]], [[NO_EXPERT]]]))
    later = token_chunk([[[1, 2]], [[3, NO_EXPERT]]])
    header = TraceHeader(kind="tokens", layers=2, experts=8)
    import_trace([ListedReader(header, [first, later])], tmp_path / "t.parquet")
    topk = tokens_of(open_parquet(tmp_path / "t.parquet", OPTIONS))["topk_LTK"]
    none = int(NO_EXPERT)
    assert topk[0].tolist() == [[4, none], [4, none], [4, none], [1, 2]]
    assert topk[1].tolist() == [[none, none]] * 3 + [[3, none]]


def test_counts_with_and_without_sources_are_added_over_sources(tmp_path: Path) -> None:
    known = ListedReader(
        TraceHeader(kind="counts", layers=1, experts=2, source_ranks=2), [count_chunk([[[1, 2], [3, 4]]], "x")], "a"
    )
    unknown = ListedReader(TraceHeader(kind="counts", layers=1, experts=2), [count_chunk([[[5, 6]]], "x")], "b")
    import_trace([known, unknown], tmp_path / "t.parquet")
    chunks = list(open_parquet(tmp_path / "t.parquet", OPTIONS).chunks())
    assert [chunk.tokens_LSE.tolist() for chunk in chunks if isinstance(chunk, CountChunk)] == [[[[4, 6]]], [[[5, 6]]]]
    assert [chunk.window for chunk in chunks] == ["a: x", "b: x"]


def test_warnings_of_the_inputs_stay_with_the_trace(tmp_path: Path) -> None:
    notice = Notice("MISSING_RANKS", "x lacks rank 1")
    header = TraceHeader(kind="counts", layers=1, experts=2)
    reader = ListedReader(header, [count_chunk([[[1, 2]]])], notices=[notice])
    facts = import_trace([reader], tmp_path / "t.parquet")
    assert facts["warnings"] == [notice.to_dict()]
    assert open_parquet(tmp_path / "t.parquet", OPTIONS).notices == (notice,)


def test_importing_a_trace_again_changes_nothing(tmp_path: Path) -> None:
    import_trace(open_inputs([DATA / "tiny_affinity.npz"], OPTIONS), tmp_path / "one.parquet")
    import_trace(open_inputs([tmp_path / "one.parquet"], OPTIONS), tmp_path / "two.parquet")
    one, two = (tokens_of(open_parquet(tmp_path / f"{name}.parquet", OPTIONS)) for name in ("one", "two"))
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_progress_ends_at_one(tmp_path: Path) -> None:
    shares: list[float] = []
    readers = open_inputs([DATA / "tiny_affinity.npz", DATA / "tiny_mixed.npz"], OPTIONS)
    import_trace(readers, tmp_path / "t.parquet", progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


# ---------------------------------------------------------------- nothing half-written


def test_a_reader_that_fails_leaves_no_file(tmp_path: Path) -> None:
    class Failing(ListedReader):
        def chunks(self) -> Iterator[TokenChunk]:
            yield token_chunk([[[1]]])
            raise UnreadableDump("cut in the middle")

    with pytest.raises(UnreadableDump, match="cut in the middle"):
        import_trace([Failing(TraceHeader(kind="tokens", layers=1, experts=8), [])], tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OutputNotWritable, match="does not exist"):
        import_trace(open_inputs([DATA / "tiny_affinity.npz"], OPTIONS), tmp_path / "missing" / "t.parquet")


def test_counts_and_tokens_do_not_go_into_one_trace(tmp_path: Path) -> None:
    tokens = ListedReader(TraceHeader(kind="tokens", layers=1, experts=2), [token_chunk([[[1]]])], "a")
    counts = ListedReader(TraceHeader(kind="counts", layers=1, experts=2), [count_chunk([[[1, 2]]])], "b")
    with pytest.raises(InputsDisagree, match="a holds tokens, b holds counts"):
        import_trace([tokens, counts], tmp_path / "t.parquet")


# ---------------------------------------------------------------- files that are no trace of ours


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    import_trace(open_inputs([DATA / "tiny_affinity.npz"], OPTIONS), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def with_header(path: Path, change: dict[str, Any] | bytes | None, table: pa.Table | None = None) -> Path:
    """Write the trace again with another header, or none."""
    metadata = pq.read_metadata(path).metadata
    content = table if table is not None else pq.read_table(path)
    with pq.ParquetWriter(path, content.schema.remove_metadata()) as writer:
        writer.write_table(content)
        if isinstance(change, bytes):
            writer.add_key_value_metadata({b"moeplan": change})
        elif change is not None:
            writer.add_key_value_metadata(
                {b"moeplan": json.dumps({**json.loads(metadata[b"moeplan"]), **change}).encode()}
            )
    return path


def test_a_rewritten_header_with_nothing_changed_is_read(trace: Path) -> None:
    before = tokens_of(open_parquet(trace, OPTIONS))
    after = tokens_of(open_parquet(with_header(trace, {}), OPTIONS))
    assert np.array_equal(before["topk_LTK"], after["topk_LTK"])


@pytest.mark.parametrize("version", [2, 99, "2", None])
def test_another_version_is_refused_and_named(trace: Path, version: object) -> None:
    with pytest.raises(TraceVersionUnknown, match="reads version 1"):
        open_parquet(with_header(trace, {"format_version": version}), OPTIONS)


def test_parquet_of_others_is_an_unknown_format(trace: Path) -> None:
    with pytest.raises(UnknownFormat, match="without a moeplan header"):
        open_parquet(with_header(trace, None), OPTIONS)


@pytest.mark.parametrize(
    "change",
    [
        b"{",
        b"[]",
        b"7",
        b"{}",
        b"\xff",
        {"kind": "both"},
        {"layers": 0},
        {"layers": 10**9},
        {"layers": True},
        {"experts": "32"},
        {"experts": 10**6},
        {"source_ranks": 0},
        {"source_ranks": 10**9},
        {"moe_layers": [0, 99]},
        {"moe_layers": [0, 0, 1, 2, 3, 4, 5]},
        {"moe_layers": [0, 1, 2]},
        {"columns_per_token": 5},
        {"columns_per_token": 10**9},
        {"window_names": "abc"},
        {"notices": [{}]},
        {"inputs": [1]},
    ],
)
def test_headers_that_contradict_the_file_are_refused(trace: Path, change: dict[str, Any] | bytes) -> None:
    with pytest.raises(UnreadableDump, match=r"t\.parquet"):
        open_parquet(with_header(trace, change), OPTIONS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 4}, "id"),
        ({"domain_names": ["a"]}, "domain"),
        ({"source_ranks": 1}, "source"),
        ({"window_names": []}, "window"),
    ],
)
def test_values_outside_the_header_are_refused(trace: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableDump, match=message):
        tokens_of(open_parquet(with_header(trace, change), OPTIONS))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_trace_is_refused(trace: Path, share: float) -> None:
    content = trace.read_bytes()
    trace.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UnreadableDump):
        tokens_of(open_inputs([trace], OPTIONS)[0])


@settings(max_examples=80)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_damaged_trace_is_refused_or_still_right(scratch: Path, place: float, bit: int) -> None:
    topk = np.random.default_rng(0).integers(0, 8, (2, 40, 2))
    whole, path = scratch / "whole.parquet", scratch / "damaged.parquet"
    if not whole.exists():
        header = TraceHeader(kind="tokens", layers=2, experts=8, source_ranks=1, domain_names=("a",))
        import_trace([ListedReader(header, [token_chunk(topk, source_T=np.zeros(40))])], whole)
    content = bytearray(whole.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    with suppress(UnreadableDump, UnknownFormat, TraceVersionUnknown, ArchiveInflates):
        assert np.array_equal(tokens_of(open_parquet(path, OPTIONS))["topk_LTK"], topk)


def test_row_groups_that_claim_too_much_are_refused(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_reader, "MAX_ROW_GROUP_BYTES", 1000)
    with pytest.raises(ArchiveInflates, match="row group"):
        open_parquet(trace, OPTIONS)


def test_a_model_that_does_not_fit_is_refused(trace: Path) -> None:
    with pytest.raises(InputsDisagree, match="32 experts, the model 64"):
        open_parquet(trace, ReadOptions(experts=64))
    with pytest.raises(InputsDisagree, match="6 decoder layers, the model 7"):
        open_parquet(trace, ReadOptions(model=shape(7, 32, dense=1)))
    assert codes(open_parquet(trace, ReadOptions(model=shape(6, 32))).notices) == []


def test_more_windows_than_the_file_can_number_are_refused(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "MAX_WINDOWS", 3)
    header = TraceHeader(kind="counts", layers=1, experts=2)
    chunks = [count_chunk([[[1, 2]]], window=f"w{number}") for number in range(4)]
    out = scratch / "windows.parquet"
    with pytest.raises(BadCountShape, match="above 3 windows"):
        import_trace([ListedReader(header, chunks)], out)
    assert not out.exists()
    assert import_trace([ListedReader(header, chunks[:3])], out)["windows"] == ["w0", "w1", "w2"]
