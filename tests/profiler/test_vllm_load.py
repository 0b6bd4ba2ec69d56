"""vLLM's load records (of a proposal): slots become experts, and what is no such file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import BadMapShape, CodedError, CountOutOfRange, ExpertIdRange, NegativeCount
from profiler.errors import BadCountShape, BadCountType, BadJson, InputsDisagree, UnknownFormat
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.readers.vllm_load import open_vllm_load
from tests.case_files import case_folder
from tests.profiler.recordings import codes, shape, total_LE

RECORD: dict[str, Any] = {
    "record_type": "eplb_load_stats",
    "version": 1,
    "step": 100,
    "num_ranks": 2,
    "expert_load": [[10, 1, 5, 2], [2, 8, 1, 3]],
    "p2l_map": [[0, 1, 2, 0], [2, 1, 0, 1]],
}
META = {"record_type": "eplb_load_meta", "model": "some"}


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_loads_of_slots_are_added_up_by_expert(tmp_path: Path) -> None:
    moved = {**RECORD, "step": 200, "p2l_map": [[2, 1, 0, 0], [0, 1, 2, 2]]}
    (reader,) = open_inputs([write(tmp_path / "loads.jsonl", META, RECORD, moved)], ReadOptions())
    first, second = [[12, 1, 5], [1, 11, 2]], [[7, 1, 10], [2, 8, 4]]
    assert np.array_equal(total_LE(reader), np.array(first) + np.array(second))
    assert (reader.header.engine, reader.header.experts, reader.header.source_ranks) == ("vllm", 3, None)
    assert len(list(reader.chunks())) == 2
    facts = reader.facts()
    assert (facts["records"], facts["steps"], facts["ranks"]) == (2, [100, 200], [2])


def test_rows_are_moe_layers(tmp_path: Path) -> None:
    """The kind of case P16: two dense layers first."""
    file = write(tmp_path / "loads.jsonl", RECORD)
    reader = open_vllm_load(file, ReadOptions(model=shape(4, 3, dense=2, top_k=2)))
    assert np.array_equal(total_LE(reader), [[0] * 3, [0] * 3, [12, 1, 5], [1, 11, 2]])
    assert reader.notices == ()
    assert codes(open_vllm_load(file, ReadOptions()).notices) == ["LAYERS_ASSUMED"]


@given(data=st.data(), experts=st.integers(1, 6), spare=st.integers(0, 3), layers=st.integers(1, 3))
def test_no_token_is_lost_or_made(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, experts: int, spare: int, layers: int
) -> None:
    slots = [
        list(range(experts)) + data.draw(st.lists(st.integers(0, experts - 1), min_size=spare, max_size=spare))
        for _ in range(layers)
    ]
    counts = st.lists(st.integers(0, 2**40), min_size=experts + spare, max_size=experts + spare)
    loads = [data.draw(counts) for _ in range(layers)]
    record = {**RECORD, "expert_load": loads, "p2l_map": slots}
    folder = tmp_path_factory.mktemp("loads")
    total = total_LE(open_vllm_load(write(folder / "l.jsonl", record), ReadOptions()))
    assert total.sum(axis=1).tolist() == [sum(row) for row in loads]
    for layer in range(layers):
        for expert in range(experts):
            held = [load for load, slot in zip(loads[layer], slots[layer], strict=True) if slot == expert]
            assert total[layer, expert] == sum(held)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"version": 2}, UnknownFormat, "line 2 of l.jsonl has version 2"),
        ({"expert_load": [[1, 2, 3, 4]]}, BadCountShape, "1 rows; p2l_map has 2 layers"),
        ({"expert_load": [[1, 2, 3, 4], [1, 2]]}, BadCountShape, r"expert_load\[1\] in line 2"),
        ({"expert_load": None}, BadCountShape, "expert_load in line 2"),
        ({"expert_load": [[1, 2, 3, 4], [1, 2, -3, 4]]}, NegativeCount, r"expert_load\[1\] in line 2 of l.jsonl\[2\]"),
        ({"expert_load": [[1, 2, 3, 4], [1, 2, 0.5, 4]]}, BadCountType, "fraction"),
        ({"expert_load": [[1, 2, 3, 4], [1, 2, "3", 4]]}, BadCountType, r"expert_load\[1\]\[2\]"),
        ({"expert_load": [[1, 2, 3, 4], [1, 2, True, 4]]}, BadCountType, "True"),
        ({"expert_load": [[2**62] * 4] * 2}, CountOutOfRange, "more than 2\\^62"),
        ({"p2l_map": [[0, 1, 2, -1], [0, 1, 2, 0]]}, ExpertIdRange, r"p2l_map\[0\]\[3\] in line 2"),
        ({"p2l_map": [[0, 1, 2, 0], [0, 1, 2]]}, BadMapShape, "p2l_map in line 2"),
        ({"p2l_map": None}, BadMapShape, "p2l_map in line 2"),
    ],
)
def test_broken_records_are_refused_by_place(
    tmp_path: Path, change: dict[str, Any], error: type[CodedError], said: str
) -> None:
    with pytest.raises(error, match=said):
        open_vllm_load(write(tmp_path / "l.jsonl", META, {**RECORD, **change}), ReadOptions())


def test_records_of_different_models_are_refused(tmp_path: Path) -> None:
    other = {**RECORD, "expert_load": [[1, 2, 3, 4]], "p2l_map": [[0, 1, 2, 0]]}
    with pytest.raises(BadCountShape, match="has 1 layers, the records before have 2"):
        open_vllm_load(write(tmp_path / "l.jsonl", RECORD, other), ReadOptions())
    with pytest.raises(InputsDisagree):
        open_vllm_load(write(tmp_path / "l.jsonl", RECORD), ReadOptions(model=shape(2, 64, dense=0, top_k=2)))


def test_files_without_loads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match="eplb_load_meta; loads are in records of eplb_load_stats"):
        open_inputs([write(tmp_path / "a.jsonl", META)], ReadOptions())
    layout = {"record_type": "eplb_initial_mapping", "version": 1}
    with pytest.raises(UnknownFormat, match="is a layout"):
        open_inputs([write(tmp_path / "b.jsonl", layout)], ReadOptions())


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "l.jsonl", RECORD)
    file.write_text(file.read_text() + '{"record_type": "eplb_lo')
    with pytest.raises(BadJson, match=r"line 2 of l\.jsonl"):
        open_vllm_load(file, ReadOptions())


def test_an_expert_map_of_vllm_ascend_is_no_recording() -> None:
    with pytest.raises(UnknownFormat, match="keeps expert loads in memory"):
        open_inputs([case_folder("U14") / "expert_map.json"], ReadOptions())
