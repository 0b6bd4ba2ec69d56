"""Reading .pt files: what torch.save writes comes out as it went in, and anything else is refused with one sentence."""

from __future__ import annotations

import functools
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.errors import CodedError
from profiler.errors import ArchiveInflates, InputNotFound, UnreadableDump
from profiler.readers import pt_archive
from profiler.readers.pt_archive import load_pt
from tests.case_files import case_folder
from tests.profiler.readers.pt_files import ONE_INT32, number, tensor, text, tuple_of, write_archive

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
DTYPES = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.float32, torch.float64]

tensors = st.builds(
    lambda shape, dtype: torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape).to(dtype),
    st.lists(st.integers(0, 4), min_size=0, max_size=3),
    st.sampled_from([*DTYPES, *FLOATS, torch.bool]),
)
scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5)
objects = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def save(value: Any, path: Path) -> Path:
    torch.save(value, path)
    return path


def plain(value: Any) -> Any:
    """Return what load_pt should make of a value."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return type(value)(plain(item) for item in value) if isinstance(value, list | tuple) else value


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@SAME_FOLDER
@given(value=objects)
def test_what_torch_saves_comes_back(tmp_path: Path, value: Any) -> None:
    assert_same(load_pt(save(value, tmp_path / "good.pt")), plain(value))


def test_arrays_are_read_only_and_the_file_is_left_alone(tmp_path: Path) -> None:
    path = save({"counts": torch.ones(3, 4, dtype=torch.int32)}, tmp_path / "good.pt")
    before = path.read_bytes()
    counts = load_pt(path)["counts"]
    with pytest.raises(ValueError, match="read-only"):
        counts[0, 0] = 7
    assert path.read_bytes() == before


def test_views_and_shared_storages_come_back(tmp_path: Path) -> None:
    whole = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    loaded = load_pt(save([whole, whole.T, whole[1:3, ::2], whole[:1].expand(1, 6)], tmp_path / "views.pt"))
    for found, expected in zip(loaded, [whole, whole.T, whole[1:3, ::2], whole[:1]], strict=True):
        np.testing.assert_array_equal(found, expected.numpy())


def test_half_floats_that_numpy_lacks_become_floats(tmp_path: Path) -> None:
    (found,) = load_pt(save([torch.tensor([1.5, -2.0], dtype=torch.bfloat16)], tmp_path / "bf16.pt"))
    assert found.dtype == np.float32
    assert found.tolist() == [1.5, -2.0]


def test_tensors_of_a_gpu_are_read_without_one(tmp_path: Path) -> None:
    for device in ("cuda:0", "cuda:7", "npu:0"):
        loaded = load_pt(write_archive(tmp_path / "gpu.pt", tensor(device=device)))
        assert loaded.tolist() == [[1, 1], [1, 1]]


def test_archives_without_checksums_are_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = save({"counts": torch.arange(5)}, tmp_path / "unchecked.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert load_pt(path)["counts"].tolist() == [0, 1, 2, 3, 4]


def test_one_list_in_many_records_is_read_once(tmp_path: Path) -> None:
    shared = [{"layer_id": layer, "tokens": [layer] * 50} for layer in range(100)]
    records = [{"forward_pass_id": index, "misc_objects": shared} for index in range(2000)]
    loaded = load_pt(save(records, tmp_path / "shared.pt"))
    assert loaded[1999]["misc_objects"] is loaded[0]["misc_objects"]


def test_a_pickle_that_multiplies_by_references_stays_small(tmp_path: Path) -> None:
    laughs: list[Any] = ["ha"]
    for _ in range(25):  # 2^25 leaves to whoever follows every reference
        laughs = [laughs, laughs]
    found = load_pt(save(laughs, tmp_path / "laughs.pt"))
    assert found[0] is found[1]


# --- damage ---------------------------------------------------------------------------------------------------------


@functools.cache
def good_dump() -> bytes:
    import io

    content = io.BytesIO()
    counts = torch.arange(2 * 3 * 8, dtype=torch.int32).reshape(2, 3, 8)
    torch.save({"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None}, content)
    return content.getvalue()


@pytest.mark.parametrize("name", ["half.pt", "empty.pt"])
def test_the_truncated_files_of_the_case(name: str) -> None:
    with pytest.raises(UnreadableDump) as caught:
        load_pt(case_folder("P28") / name)
    assert caught.value.code == "UNREADABLE_DUMP"


def test_truncation_anywhere_is_refused(tmp_path: Path) -> None:
    whole = good_dump()
    path = tmp_path / "cut.pt"
    for length in range(0, len(whole), 10):
        path.write_bytes(whole[:length])
        with pytest.raises(UnreadableDump):
            load_pt(path)


@SAME_FOLDER
@given(data=st.data())
def test_flipped_bits_are_noticed_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(good_dump())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.pt"
    path.write_bytes(damaged)
    refused: CodedError | None = None
    try:
        counts = load_pt(path)["logical_count"]
    except CodedError as error:
        refused = error
    if refused is None:
        np.testing.assert_array_equal(counts.ravel(), np.arange(48))
    else:
        assert refused.code in {"UNREADABLE_DUMP", "UNSAFE_PICKLE", "ARCHIVE_INFLATES"}
        assert refused.detail.endswith(".")
        assert "\n" not in refused.detail


@SAME_FOLDER
@given(content=st.binary(max_size=200), head=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x04"]))
def test_noise_is_refused(tmp_path: Path, content: bytes, head: bytes) -> None:
    path = tmp_path / "noise.pt"
    path.write_bytes(head + content)
    with pytest.raises(CodedError) as caught:
        load_pt(path)
    assert caught.value.code in {"UNREADABLE_DUMP", "UNSAFE_PICKLE"}


# --- things that are no dump ----------------------------------------------------------------------------------------


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound):
        load_pt(tmp_path / "missing.pt")
    with pytest.raises(UnreadableDump):
        load_pt(tmp_path)
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(UnreadableDump):  # and does not wait for somebody to write
        load_pt(tmp_path / "pipe.pt")


def test_other_archives_and_old_formats_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", counts=np.ones(3))
    with pytest.raises(UnreadableDump):
        load_pt(tmp_path / "arrays.npz")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("folder/readme.txt", "nothing")
    with pytest.raises(UnreadableDump, match=r"without data\.pkl"):
        load_pt(tmp_path / "other.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(UnreadableDump, match="bare pickle"):
        load_pt(tmp_path / "old.pt")
    (tmp_path / "text.pt").write_text("layer,expert,count\n")
    with pytest.raises(UnreadableDump, match=r"not a file of torch\.save"):
        load_pt(tmp_path / "text.pt")


@pytest.mark.parametrize("name", ["../outside", "archive/../../outside", "/etc/absolute", "archive//empty", "flat"])
def test_strange_member_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableDump):
        load_pt(write_archive(tmp_path / "names.pt", tensor(), more={name: b"x"}))


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableDump, match="two members"):
        load_pt(write_archive(tmp_path / "case.pt", tensor(), more={"archive/DATA.pkl": b"\x80\x02N."}))
    path = write_archive(tmp_path / "twice.pt", tensor())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
    with pytest.raises(UnreadableDump, match="two members"):
        load_pt(path)


def test_bytes_around_the_archive_are_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "around.pt", tensor())
    whole = path.read_bytes()
    for content in (b"PK\x03\x04 something" + whole, whole + b"behind", whole[:-2] + b"\x06\0behind"):
        path.write_bytes(content)
        with pytest.raises(UnreadableDump):
            load_pt(path)


def test_too_many_members_and_too_long_pickles_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save([torch.full((2,), value) for value in range(20)], tmp_path / "many.pt")
    assert len(load_pt(path)) == 20
    monkeypatch.setattr(pt_archive, "MAX_MEMBERS", 10)
    with pytest.raises(UnreadableDump, match="members"):
        load_pt(path)
    monkeypatch.undo()
    monkeypatch.setattr(pt_archive, "MAX_PICKLE_BYTES", 100)
    with pytest.raises(UnreadableDump, match="pickle of"):
        load_pt(path)


# --- archives that inflate ------------------------------------------------------------------------------------------


def test_a_deflated_bomb_is_refused(tmp_path: Path) -> None:
    zeros = bytes(2**26)
    bomb = tensor(shape=(2**24,), strides=(1,), elements=2**24)
    path = write_archive(tmp_path / "bomb.pt", bomb, storages={"0": zeros}, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**18
    with pytest.raises(ArchiveInflates) as caught:
        load_pt(path)
    assert str(2**26)[:3] in caught.value.detail


def test_a_slightly_compressed_archive_is_refused_too(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(4096)
    many = tensor(shape=(1024,), strides=(1,), elements=1024)
    path = write_archive(tmp_path / "packed.pt", many, storages={"0": noise}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UnreadableDump, match="compressed"):
        load_pt(path)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A bomb without compression: directory entries that all point at the same bytes."""
    path = write_archive(tmp_path / "overlap.pt", tensor(), storages={"0": bytes(4000), "1": bytes(4000)})
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    entry = content.index(b"archive/data/1", directory) - 46
    other = content.index(b"archive/data/0", directory) - 46
    content[entry + 42 : entry + 46] = content[other + 42 : other + 46]
    path.write_bytes(content)
    with pytest.raises(ArchiveInflates, match="share"):
        load_pt(path)


# --- tensors that lie -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("repeats four numbers a million million times", tensor(shape=(10**6, 10**6), strides=(0, 0))),
        ("overlaps itself", tensor(shape=(5, 4), strides=(0, 1))),
        ("goes beyond its storage", tensor(shape=(1000,), strides=(1,))),
        ("begins behind its storage", tensor(offset=100)),
        ("begins before its storage", tensor(offset=-4)),
        ("has a negative size", tensor(shape=(-2,), strides=(1,))),
        ("has a negative stride", tensor(shape=(2,), strides=(-1,), offset=3)),
        ("claims more than its member", tensor(shape=(30,), strides=(1,), elements=30)),
        ("claims less than its member", tensor(shape=(2,), strides=(1,), elements=2)),
        ("claims a negative number", tensor(elements=-4)),
        ("claims more than there is memory", tensor(shape=(10**12,), strides=(1,), elements=10**12)),
        ("has no member", tensor(member="7")),
        ("has a number too large for a size", tensor(shape=(2**70,), strides=(1,))),
    ],
)
def test_tensors_that_do_not_fit_their_storage_are_refused(tmp_path: Path, what: str, value: bytes) -> None:
    with pytest.raises(UnreadableDump):
        load_pt(write_archive(tmp_path / "lying.pt", value))


def test_a_storage_is_claimed_once_per_member(tmp_path: Path) -> None:
    """The same numbers twice are one storage; two storages of one size need two members."""
    both = b"](" + tensor() + tensor() + b"e"
    assert len(load_pt(write_archive(tmp_path / "same.pt", both))) == 2
    two = b"](" + tensor() + tensor(member="1") + b"e"
    storages = {"0": ONE_INT32 * 4, "1": ONE_INT32 * 4}
    assert len(load_pt(write_archive(tmp_path / "two.pt", two, storages=storages))) == 2


def test_unaligned_storages_are_read(tmp_path: Path) -> None:
    """Other tools do not pad the members as torch does."""
    path = write_archive(tmp_path / "odd.pt", tensor(), root="a" * 7)
    assert load_pt(path).tolist() == [[1, 1], [1, 1]]


# --- nesting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("lists", b"]" * 200_000 + b"a" * 199_999),
        ("tuples", b")" + b"\x85" * 200_000),
        ("dicts", b"}" + (text("a") + b"}") * 5_000 + b"s" * 5_000),
        ("a tuple as a key, which hashing would follow down", b"})" + b"\x85" * 3_000_000 + number(1) + b"s"),
        ("a list in itself", b"]q\x00h\x00a"),
        ("a dict in itself", b"}q\x00" + text("a") + b"h\x00s"),
        ("a tuple in itself through a list", b"]q\x00h\x00\x85q\x01a"),
    ],
)
def test_deep_and_circular_nesting_is_refused(tmp_path: Path, what: str, value: bytes) -> None:
    with pytest.raises(UnreadableDump):
        load_pt(write_archive(tmp_path / "deep.pt", value))


def test_keys_other_than_names_and_numbers_are_refused(tmp_path: Path) -> None:
    value = b"}" + tuple_of([number(1), number(2)]) + number(3) + b"s"
    with pytest.raises(UnreadableDump, match="key"):
        load_pt(write_archive(tmp_path / "keys.pt", value))


# --- tensors of other kinds -----------------------------------------------------------------------------------------


OTHER_KINDS = {
    "sparse": lambda: torch.ones(2, 2).to_sparse(),
    "sparse rows": lambda: torch.ones(2, 2).to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "without data": lambda: torch.ones(3, device="meta"),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "ragged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds_are_refused(tmp_path: Path, kind: str) -> None:
    path = save({"logical_count": OTHER_KINDS[kind]()}, tmp_path / "kind.pt")
    with pytest.raises(CodedError) as caught:
        load_pt(path)
    assert caught.value.code in {"UNREADABLE_DUMP", "UNSAFE_PICKLE"}
