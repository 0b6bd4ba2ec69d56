"""Dumps written by us are those of the engine: same names, keys, types and shapes, and they read back the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placement.errors import BadOption
from profiler.errors import OutputNotWritable
from profiler.readers.pt_archive import load_pt
from profiler.readers.sglang_records import RANK_FILE
from profiler.writers.sglang_dump import (
    RecordedTokens,
    rank_file_name,
    stat_file_name,
    write_per_pass,
    write_per_token,
    write_stat,
)
from tests.profiler.recordings import DATA

REAL = DATA / "sglang"
REAL_RANK = next((REAL / "per_token").glob("*_0.pt"))


def kinds(value: Any) -> Any:
    """Return what a value is made of, without its contents."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    return type(value)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and found == expected


def test_a_real_per_token_dump_can_be_written_again(tmp_path: Path) -> None:
    real = load_pt(REAL_RANK)
    passes = [
        RecordedTokens(
            forward_pass_id=record["forward_pass_id"],
            ids_LTK=record["topk_ids_of_layer"][:, :, :4],
            input_ids=record["input_ids"],
            positions=record["positions"],
            extend_seq_lens=record["extend_seq_lens"],
            forward_mode=record["forward_mode"],
        )
        for record in real["records"]
    ]
    path = tmp_path / REAL_RANK.name
    write_per_token(path, passes, real["last_physical_to_logical_map"], rank=0)
    assert same(load_pt(path), real)


def test_a_real_stat_dump_can_be_written_again(tmp_path: Path) -> None:
    real = load_pt(REAL / "stat_mixed.pt")
    write_stat(tmp_path / "stat.pt", real["logical_count"])
    assert same(load_pt(tmp_path / "stat.pt"), real)


def test_a_per_pass_dump_has_the_records_of_a_per_token_dump_without_tokens(tmp_path: Path) -> None:
    real = load_pt(REAL_RANK)
    passes = [(record["forward_pass_id"], record["global_physical_count"]) for record in real["records"]]
    write_per_pass(tmp_path / "rank.pt", passes, real["last_physical_to_logical_map"], rank=0)
    written = load_pt(tmp_path / "rank.pt")
    keys = ("forward_pass_id", "rank", "gatherer_key", "global_physical_count")
    assert same(written["records"], [{key: record[key] for key in keys} for record in real["records"]])
    assert kinds({**written, "records": 0}) == kinds({**real, "records": 0})


def test_names_are_the_recorders() -> None:
    match = RANK_FILE.fullmatch(REAL_RANK.name)
    assert match is not None
    assert rank_file_name(float(match["time"]), int(match["rank"])) == REAL_RANK.name
    assert RANK_FILE.fullmatch(stat_file_name(1795978390.596403)) is None


def test_equal_content_is_equal_bytes_whatever_its_name(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        write_stat(tmp_path / name, np.arange(24).reshape(2, 3, 4))
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_torch_reads_what_is_written_as_the_engine_does(tmp_path: Path) -> None:
    write_stat(tmp_path / "a.pt", np.arange(24, dtype=np.uint16).reshape(2, 3, 4))
    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    assert loaded["logical_count"].dtype == torch.int32
    assert loaded["logical_count"].sum() == 276


@pytest.mark.parametrize(
    "counts",
    [np.zeros((3, 4), dtype=int), np.full((1, 1, 1), 2**31), np.full((1, 1, 1), -1), np.full((1, 1, 1), 0.5)],
    ids=["no steps", "too large", "negative", "fraction"],
)
def test_counts_that_the_recorder_cannot_hold_are_refused(tmp_path: Path, counts: Any) -> None:
    with pytest.raises(BadOption):
        write_stat(tmp_path / "a.pt", counts)
    assert not list(tmp_path.iterdir())


def test_tokens_that_the_recorder_cannot_hold_are_refused(tmp_path: Path) -> None:
    ids = np.zeros((2, 3, 4), dtype=np.int64)
    for arguments in (
        (1, np.zeros((2, 3, 9), dtype=np.int64), [1] * 3, [0, 1, 2], [3], 1),
        (1, ids, [1] * 2, [0, 1, 2], [3], 1),
        (1, ids, [1] * 3, [0, 1], [3], 1),
        (1, ids[0], [1] * 3, [0, 1, 2], [3], 1),
    ):
        with pytest.raises(BadOption):
            RecordedTokens(*arguments)
    for wrong in (8, -2):
        with pytest.raises(BadOption, match="slot ids"):
            write_per_token(
                tmp_path / "a.pt",
                [RecordedTokens(1, ids + wrong, [1] * 3, [0, 1, 2], [3], 1)],
                np.tile(np.arange(8), (2, 1)),
                rank=0,
            )
    assert not list(tmp_path.iterdir())


def test_what_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_stat(path, np.ones((1, 2, 3), dtype=int))
    before = path.read_bytes()
    with pytest.raises(BadOption):
        write_stat(path, np.full((1, 2, 3), -1))
    assert path.read_bytes() == before
    with pytest.raises(OutputNotWritable):
        write_stat(tmp_path / "missing" / "a.pt", np.ones((1, 2, 3), dtype=int))
