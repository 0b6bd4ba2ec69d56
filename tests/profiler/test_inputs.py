"""Formats are told apart by content."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placement.errors import BadOption, CodedError
from profiler.errors import BadJson, InputNotFound, InputsDisagree, UnknownFormat, UnreadableDump
from profiler.inputs import open_inputs, trace_facts
from profiler.readers.options import ReadOptions
from profiler.windows import WindowBy, build_demand
from profiler.writers.parquet import import_trace
from tests.case_files import case_folder
from tests.profiler.recordings import DATA, write_json

OPTIONS = ReadOptions()


@pytest.fixture
def examples(tmp_path: Path) -> dict[str, Path]:
    """One file of each format."""
    folder = tmp_path / "examples"
    folder.mkdir()
    np.savez(folder / "counts.npz", counts=np.ones((1, 2, 3), dtype=int))
    import_trace(open_inputs([DATA / "tiny_affinity.npz"], OPTIONS), folder / "trace.parquet")
    return {
        "npz counts": folder / "counts.npz",
        "json": write_json(folder / "counts.json", {"logical_count": [[1, 2]]}),
        "csv": next(case_folder("P01").glob("*rank0*.csv")),
        "npz tokens": DATA / "tiny_affinity.npz",
        "parquet": folder / "trace.parquet",
        "pt": case_folder("P13") / "dump.pt",
    }


def test_every_format_has_its_reader(examples: dict[str, Path]) -> None:
    kinds = {name: type(open_inputs([path], OPTIONS)[0]).__name__ for name, path in examples.items()}
    assert kinds.pop("pt").startswith("Sglang")
    assert kinds == {
        "npz counts": "CountsReader",
        "json": "CountsReader",
        "csv": "CountsReader",
        "npz tokens": "TokenNpzReader",
        "parquet": "ParquetReader",
    }


@pytest.mark.parametrize("suffix", ["", ".bin", ".pt", ".json", ".npz", ".parquet", ".csv"])
def test_content_decides_whatever_the_name(examples: dict[str, Path], tmp_path: Path, suffix: str) -> None:
    for name, path in examples.items():
        copy = tmp_path / f"copy{suffix}"
        shutil.copyfile(path, copy)
        (original,), (copied,) = open_inputs([path], OPTIONS), open_inputs([copy], OPTIONS)
        assert (type(copied), copied.header) == (type(original), original.header), name


def test_facts_of_every_format_are_json(examples: dict[str, Path]) -> None:
    for path in examples.values():
        (reader,) = open_inputs([path], OPTIONS)
        facts = trace_facts(reader)
        assert json.loads(json.dumps(facts)) == facts
        assert facts["name"] == path.name
        assert len(str(facts["sha256"])) == 64


def test_inputs_come_back_in_the_order_given(examples: dict[str, Path]) -> None:
    paths = [examples["npz tokens"], examples["json"], examples["parquet"]]
    assert [reader.name for reader in open_inputs(paths, OPTIONS)] == [path.name for path in paths]
    assert [reader.name for reader in open_inputs(paths[::-1], OPTIONS)] == [path.name for path in paths[::-1]]


def test_rank_csvs_of_two_folders_are_two_recordings(tmp_path: Path) -> None:
    paths = []
    for folder in ("monday", "tuesday"):
        shutil.copytree(case_folder("P01"), tmp_path / folder)
        paths += sorted((tmp_path / folder).glob("*.csv"))
    readers = open_inputs(paths, ReadOptions(experts=64))
    assert [reader.name for reader in readers] == ["monday", "tuesday"]
    assert all(reader.facts()["ranks_merged"] == [0, 1, 2] for reader in readers)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("empty.npz", b"", UnreadableDump, "empty"),
        ("empty.pt", b"", UnreadableDump, "empty"),
        ("a.npy", b"\x93NUMPY\x01\x00", UnknownFormat, "single NumPy array"),
        ("a.json.gz", b"\x1f\x8b\x08\x00", UnknownFormat, "compressed"),
        ("a.txt", b"hello", UnknownFormat, "starts with b'hello'.*supported are SGLang"),
        ("a.csv", b"layer,expert,count\n1,2,3\n", UnknownFormat, "layer,expert"),
        ("a.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}", UnknownFormat, "give the folder"),
        ("a.json", b"hello", BadJson, "line 1, column 1"),
        ("a.npz", b"PK\x03\x04 cut", UnreadableDump, "damaged"),
        ("a.npz", b"hello", UnreadableDump, "damaged"),
        ("a.parquet", b"hello", UnreadableDump, "damaged"),
        ("a.parquet", b"PAR1", UnreadableDump, "damaged"),
        ("a.json", b"\n\n[[1, 2", BadJson, "line 3"),
        ("\nnewline", b"\n", UnknownFormat, "starts with"),
    ],
)
def test_what_cannot_be_read_says_what_was_found(
    tmp_path: Path, name: str, content: bytes, error: type[CodedError], message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        open_inputs([tmp_path / name], OPTIONS)


def test_a_zip_of_something_else_is_an_unknown_format(tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "a"), "zip", root_dir=case_folder("P01"))
    with pytest.raises(UnknownFormat, match=r"zip archive of .*csv"):
        open_inputs([tmp_path / "a.zip"], OPTIONS)


def test_folders_of_nothing_known_list_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match="no files"):
        open_inputs([tmp_path], OPTIONS)
    for index in range(7):
        (tmp_path / f"{index}.npz").touch()
    with pytest.raises(UnknownFormat, match=r"0\.npz.*and 2 more"):
        open_inputs([tmp_path], OPTIONS)


def test_a_folder_of_two_kinds_is_refused(tmp_path: Path) -> None:
    shutil.copy(case_folder("P13") / "dump.pt", tmp_path)
    shutil.copy(next(case_folder("P01").glob("*rank0*.csv")), tmp_path)
    with pytest.raises(UnknownFormat, match="both SGLang dumps and rank CSVs"):
        open_inputs([tmp_path], OPTIONS)


def test_missing_files_and_broken_links_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("absent.npz", "link"):
        with pytest.raises(InputNotFound, match=name):
            open_inputs([tmp_path / name], OPTIONS)


def test_pipes_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UnreadableDump, match="no regular file"):
            open_inputs([path], OPTIONS)


def test_no_input_and_the_same_input_twice_are_refused(examples: dict[str, Path]) -> None:
    path = examples["npz tokens"]
    with pytest.raises(BadOption, match="at least"):
        open_inputs([], OPTIONS)
    with pytest.raises(BadOption, match="twice"):
        open_inputs([path, path.parent / ".." / path.parent.name / path.name], OPTIONS)


def test_inputs_of_different_models_are_opened_but_not_added_up(tmp_path: Path) -> None:
    one = write_json(tmp_path / "one.json", {"logical_count": [[1, 2], [3, 4]]})
    two = write_json(tmp_path / "two.json", {"logical_count": [[1, 2], [3, 4], [5, 6]]})
    readers = open_inputs([one, two], OPTIONS)
    with pytest.raises(InputsDisagree, match=r"one\.json has 2 decoder layers, two\.json has 3 \(1 apart\)"):
        build_demand(readers, window_by=WindowBy(), gpus=2)
    with pytest.raises(InputsDisagree, match="1 apart"):
        import_trace(readers, tmp_path / "t.parquet")


@pytest.mark.parametrize("options", [{"experts": 0}, {"expected_ranks": 0}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="at least 1"):
        ReadOptions(**options)


def test_rank_dumps_given_one_by_one_are_one_recording() -> None:
    folder = DATA / "sglang" / "per_token"
    files = sorted(folder.glob("*.pt"), reverse=True)
    (one_by_one,) = open_inputs(files, OPTIONS)
    (together,) = open_inputs([folder], OPTIONS)
    assert one_by_one.facts() == together.facts()
    assert {notice.code for notice in one_by_one.notices} == {notice.code for notice in together.notices}
