"""NumPy archives: counts and token traces, and archives made to do harm."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from placement.errors import CodedError, CountOutOfRange, ExpertIdRange, NegativeCount
from profiler.errors import (
    ArchiveInflates,
    BadCountShape,
    BadCountType,
    InputsDisagree,
    NonFiniteCount,
    UnknownFormat,
    UnreadableDump,
    UnsafePickle,
)
from profiler.readers import npz_archive, npz_tokens
from profiler.readers.npz import open_npz
from profiler.readers.options import ReadOptions
from profiler.trace import NO_EXPERT
from tests.profiler.recordings import DATA, codes, counts_by_window, shape, tokens_of, total_LE, write_token_npz

OPTIONS = ReadOptions()


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", ">i4", "int64", "uint64", "float32", ">f8"])
def test_counts_of_every_numeric_type_are_read(tmp_path: Path, dtype: str) -> None:
    counts = np.arange(24).reshape(2, 3, 4).astype(dtype)
    reader = open_npz(save(tmp_path / "a.npz", counts=counts, window_names=["x", "y"], topk=np.int32(2)), OPTIONS)
    windows = counts_by_window(reader)
    assert list(windows) == ["x", "y"]
    assert np.array_equal(np.stack(list(windows.values()))[:, :, 0], counts.astype(np.int64))
    assert reader.header.top_k == 2


def test_counts_in_fortran_order_and_without_windows_are_read(tmp_path: Path) -> None:
    counts = np.asfortranarray(np.arange(12).reshape(3, 4))
    reader = open_npz(save(tmp_path / "a.npz", counts=counts), OPTIONS)
    assert np.array_equal(total_LE(reader), counts)
    assert list(counts_by_window(reader)) == ["a.npz"]


def test_windows_of_equal_names_stay_apart(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", counts=np.ones((2, 1, 2), dtype=int), window_names=["x", "x"])
    assert len(counts_by_window(open_npz(path, OPTIONS))) == 2


def test_layer_ids_place_rows(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", counts=np.ones((1, 2, 3), dtype=int), layer_ids=[1, 3])
    assert total_LE(open_npz(path, OPTIONS)).any(axis=1).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.array([[1.0, np.nan]]), NonFiniteCount, r"counts of a\.npz\[0\]\[1\] is nan"),
        (np.array([[np.inf, 1.0]]), NonFiniteCount, r"\[0\]\[0\]"),
        (np.array([[1.0, 1.5]]), BadCountType, r"\[0\]\[1\] is 1\.5"),
        (np.array([[1.0, 2.0**63]]), CountOutOfRange, r"\[0\]\[1\]"),
        (np.array([[1, 2**63]], dtype=np.uint64), CountOutOfRange, r"\[0\]\[1\]"),
        (np.array([[[1, 2]], [[3, -4]]]), NegativeCount, r"\[1\]\[0\]\[1\] is -4"),
        (np.array([[-0.5, 1]]), NegativeCount, r"\[0\]\[0\]"),
        (np.array([[True, False]]), BadCountType, "bool"),
        (np.array([["1", "2"]]), BadCountType, "<U1"),
        (np.array([[1j, 2]]), BadCountType, "complex"),
        (np.array([1, 2]), BadCountShape, r"\[2\]"),
        (np.array(7), BadCountShape, r"\[\]"),
        (np.zeros((1, 0, 4), dtype=int), BadCountShape, r"\[1, 0, 4\]"),
        (np.zeros((1, 1, 1, 4), dtype=int), BadCountShape, r"\[1, 1, 1, 4\]"),
    ],
)
def test_wrong_counts_are_named_by_index(
    tmp_path: Path, values: npt.NDArray[Any], error: type[CodedError], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_npz(save(tmp_path / "a.npz", counts=values), OPTIONS)


# ---------------------------------------------------------------- token traces


@given(
    topk=hnp.arrays(
        np.int64, st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 3)), elements=st.integers(-3, 7)
    ),
    dtype=st.sampled_from(["int8", "int16", "int64", ">i4"]),
    order=st.sampled_from("CF"),
    compress=st.booleans(),
    ids_per_chunk=st.integers(1, 40),
)
def test_ids_come_back_whatever_their_type_and_the_size_of_chunks(
    tmp_path_factory: pytest.TempPathFactory,
    topk: npt.NDArray[np.int64],
    dtype: str,
    order: Any,
    compress: bool,
    ids_per_chunk: int,
) -> None:
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    write = np.savez_compressed if compress else np.savez
    request_id = np.arange(topk.shape[1]) // 2
    write(path, topk=topk.astype(dtype, order=order), request_id=request_id, num_experts=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npz_tokens, "IDS_PER_CHUNK", ids_per_chunk)
        columns = tokens_of(open_npz(path, OPTIONS))
    assert np.array_equal(columns["topk_LTK"], np.where(topk < 0, NO_EXPERT, topk))
    assert columns["request_id_T"].tolist() == request_id.tolist()


def test_unsigned_ids_of_large_models_and_their_filler(tmp_path: Path) -> None:
    topk = np.array([[[200, 65535], [299, 0]]], dtype=np.uint16)
    columns = tokens_of(open_npz(write_token_npz(tmp_path / "a.npz", topk, num_experts=300), OPTIONS))
    assert columns["topk_LTK"].tolist() == [[[200, NO_EXPERT], [299, 0]]]


def test_what_is_known_per_request_is_spread_over_its_tokens(tmp_path: Path) -> None:
    path = write_token_npz(
        tmp_path / "a.npz",
        np.zeros((1, 5, 2), dtype=np.int8),
        request_id=[0, 0, 0, 1, 1],
        position=[0, 1, 2, 0, 1],
        req_source=np.array([2, 0], dtype=np.int8),
        req_domain=[1, 0],
        domain_names=["law", "code"],
        req_prompt_tokens=[2, 2],
    )
    reader = open_npz(path, OPTIONS)
    columns = tokens_of(reader)
    assert reader.header.source_ranks == 3
    assert reader.header.domain_names == ("law", "code")
    assert columns["source_T"].tolist() == [2, 2, 2, 0, 0]
    assert columns["domain_T"].tolist() == [1, 1, 1, 0, 0]
    assert columns["phase_T"].tolist() == [1, 1, 2, 1, 1]
    assert columns["step_T"].tolist() == [-1] * 5


def test_a_token_of_unknown_source_makes_sources_unknown(tmp_path: Path) -> None:
    path = write_token_npz(tmp_path / "a.npz", np.zeros((1, 3, 1), dtype=np.int8), source=[0, -1, 1])
    assert open_npz(path, OPTIONS).header.source_ranks is None


def test_negative_domains_and_positions_are_unknown(tmp_path: Path) -> None:
    arrays = {"domain": [0, -1, -7], "domain_names": ["law"], "position": [5, -3, -1]}
    columns = tokens_of(
        open_npz(write_token_npz(tmp_path / "a.npz", np.zeros((1, 3, 1), dtype=np.int8), **arrays), OPTIONS)
    )
    assert columns["domain_T"].tolist() == [0, -1, -1]
    assert columns["position_T"].tolist() == [5, -1, -1]


def test_the_number_of_experts_may_come_from_the_caller_or_the_ids(tmp_path: Path) -> None:
    path = write_token_npz(tmp_path / "a.npz", np.array([[[0, 5]]]), num_experts=None)
    assert open_npz(path, ReadOptions(experts=9)).header.experts == 9
    assumed = open_npz(path, OPTIONS)
    assert assumed.header.experts == 6
    assert codes(assumed.notices) == ["EXPERTS_ASSUMED"]


def test_ids_behind_the_routed_experts_are_shared_experts(tmp_path: Path) -> None:
    reader = open_npz(write_token_npz(tmp_path / "a.npz", np.array([[[0, 8], [7, 8]]])), OPTIONS)
    assert tokens_of(reader)["topk_LTK"].tolist() == [[[0, NO_EXPERT], [7, NO_EXPERT]]]
    assert codes(reader.notices) == ["SHARED_EXPERT_IDS"]


def test_ids_far_behind_the_experts_are_refused_by_index(tmp_path: Path) -> None:
    topk = np.zeros((2, 5, 2), dtype=np.int64)
    topk[1, 3, 1] = 70000  # would be 4464 in 16 bits
    reader = open_npz(write_token_npz(tmp_path / "a.npz", topk), OPTIONS)
    with pytest.raises(ExpertIdRange, match=r"topk\[1, 3, 1\] .* is 70000.* up to 7"):
        tokens_of(reader)


def test_a_model_places_layers_and_tells_top_k(tmp_path: Path) -> None:
    path = write_token_npz(tmp_path / "a.npz", np.array([[[1, 2, -1]], [[3, 4, -1]]], dtype=np.int8))
    reader = open_npz(path, ReadOptions(model=shape(4, 8, dense=2, top_k=2)))
    assert reader.header.top_k == 2
    assert (tokens_of(reader)["topk_LTK"][:, 0, 0]).tolist() == [NO_EXPERT, NO_EXPERT, 1, 3]
    with pytest.raises(InputsDisagree, match="the model 4"):
        open_npz(path, ReadOptions(model=shape(4, 8, dense=2, top_k=4)))


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"request_id": [0, 0]}, BadCountShape, r"request_id .* \[2\]"),
        ({"request_id": [0, 0, -1]}, BadCountShape, r"request_id\[2\]"),
        ({"request_id": [0.0, 0, 1]}, BadCountType, "float64"),
        ({"req_source": [0]}, BadCountShape, "1 entries, but request_id goes up to 1"),
        ({"position": [0, 1]}, BadCountShape, "position"),
        ({"domain": [0, 1, 5], "domain_names": ["a", "b"]}, BadCountShape, "domain 5"),
        ({"source": [0, 1, 2**40]}, BadCountShape, "source .* 32 bits"),
        ({"num_experts": 2.5}, BadCountType, "num_experts"),
        ({"num_experts": 0}, BadCountShape, "0 experts"),
        ({"layer_ids": [0, 1]}, BadCountShape, "layer_ids"),
        ({"counts": np.zeros((1, 1, 2), dtype=int)}, BadCountShape, "both"),
    ],
)
def test_token_traces_that_contradict_themselves_are_refused(
    tmp_path: Path, arrays: dict[str, Any], error: type[CodedError], message: str
) -> None:
    arrays = {"request_id": [0, 0, 1], **arrays}
    path = write_token_npz(tmp_path / "a.npz", np.zeros((1, 3, 2), dtype=np.int8), **arrays)
    with pytest.raises(error, match=message):
        tokens_of(open_npz(path, OPTIONS))


@pytest.mark.parametrize("topk", [np.zeros((1, 3, 2)), np.zeros((3, 2), dtype=int), np.zeros((1, 0, 2), dtype=int)])
def test_ids_of_another_type_or_shape_are_refused(tmp_path: Path, topk: npt.NDArray[Any]) -> None:
    with pytest.raises((BadCountType, BadCountShape), match="topk"):
        open_npz(save(tmp_path / "a.npz", topk=topk, request_id=[0, 0, 1], num_experts=4), OPTIONS)


def test_a_recorded_trace_is_read_as_recorded() -> None:
    reader = open_npz(DATA / "tiny_affinity.npz", OPTIONS)
    with np.load(DATA / "tiny_affinity.npz") as arrays:
        columns = tokens_of(reader)
        assert np.array_equal(columns["topk_LTK"], arrays["topk"])
        assert np.array_equal(columns["source_T"], arrays["req_source"][arrays["request_id"]])
    assert reader.header.source_ranks == 2
    assert reader.header.experts == 32


# ---------------------------------------------------------------- archives


def test_other_archives_are_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match=r"weights \[3\]"):
        open_npz(save(tmp_path / "a.npz", weights=np.zeros(3)), OPTIONS)


@pytest.mark.parametrize("name", ["counts", "topk", "domain_names"])
def test_pickled_arrays_are_refused_and_never_loaded(tmp_path: Path, name: str) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "was-run"),)

    arrays = {"counts": np.ones((1, 1, 2), dtype=int), name: np.array([Payload()], dtype=object)}
    with pytest.raises(UnsafePickle, match=name):
        open_npz(save(tmp_path / "a.npz", **arrays), OPTIONS)
    assert not (tmp_path / "was-run").exists()


def test_archives_that_inflate_are_refused_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, counts=np.zeros((100, 10, 1000), dtype=np.int64))
    monkeypatch.setattr(npz_archive, "MAX_INFLATED_BYTES", 2**20)
    with pytest.raises(ArchiveInflates, match="unpacks to 8000"):
        open_npz(path, OPTIONS)


def test_small_archives_may_inflate(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, counts=np.eye(1000, dtype=np.int64))  # mostly zeros, 180 times smaller when packed
    assert total_LE(open_npz(path, OPTIONS)).sum() == 1000


def test_a_header_that_claims_more_than_there_is_is_refused(tmp_path: Path) -> None:
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False, "shape": (10**6, 10**6)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("counts.npy", member.getvalue() + bytes(64))
    with pytest.raises(UnreadableDump, match="states 8000000000000 bytes"):
        open_npz(tmp_path / "a.npz", OPTIONS)


@settings(max_examples=150)
@given(share=st.floats(0.0, 0.999), flip=st.integers(0, 2**16))
def test_truncated_and_damaged_archives_never_crash(
    tmp_path_factory: pytest.TempPathFactory, share: float, flip: int
) -> None:
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    small = io.BytesIO()
    np.savez_compressed(small, counts=np.arange(600).reshape(3, 10, 20))
    whole = small.getvalue()
    cut = whole[: int(share * len(whole))]
    damaged = bytearray(whole)
    damaged[flip % len(whole)] ^= 0xFF
    for content in (cut, bytes(damaged)):
        path.write_bytes(content)
        try:
            read = total_LE(open_npz(path, OPTIONS))
        except CodedError:
            continue
        assert np.array_equal(read, np.arange(600).reshape(3, 10, 20).sum(axis=0))


def test_damaged_data_is_caught_by_its_checksum(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", counts=np.ones((1, 10, 20), dtype=np.int64))
    content = bytearray(path.read_bytes())
    content[content.index(b"NUMPY") + 300] ^= 1
    path.write_bytes(content)
    with pytest.raises(UnreadableDump, match="damaged"):
        open_npz(path, OPTIONS)


def test_arrays_of_empty_strings_cannot_claim_any_size(tmp_path: Path) -> None:
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<U0", "fortran_order": False, "shape": (10**12,)})
    path = write_token_npz(tmp_path / "a.npz", np.zeros((1, 3, 1), dtype=np.int8), domain=[0, 0, 0])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("domain_names.npy", member.getvalue())
    with pytest.raises(UnreadableDump, match="takes no bytes"):
        open_npz(path, OPTIONS)
