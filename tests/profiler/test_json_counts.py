"""JSON counts: every accepted form, and every wrong value named by its JSON path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import CodedError, CountOutOfRange, NegativeCount
from profiler.errors import BadCountShape, BadCountType, BadJson, NonFiniteCount, UnknownFormat
from profiler.readers.json_counts import open_json_counts
from profiler.readers.options import ReadOptions
from tests.case_files import case, case_folder
from tests.profiler.recordings import codes, counts_by_window, shape, total_LE, write_json

OPTIONS = ReadOptions()

tables = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6)).flatmap(
    lambda size: st.lists(
        st.lists(
            st.lists(st.integers(0, 2**40), min_size=size[2], max_size=size[2]), min_size=size[1], max_size=size[1]
        ),
        min_size=size[0],
        max_size=size[0],
    )
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json") / "counts.json"


@given(table=tables, indent=st.sampled_from([None, 0, 2]), key=st.booleans())
def test_windows_are_read_as_written(scratch: Path, table: list[Any], indent: int | None, key: bool) -> None:
    content = {"rank": 0, "logical_count": table, "note": "a [1, 2] in text"} if key else table
    reader = open_json_counts(write_json(scratch, json.dumps(content, indent=indent)), OPTIONS)
    windows = list(counts_by_window(reader).values())
    assert np.array_equal(np.stack(windows)[:, :, 0], np.array(table))
    assert (reader.header.layers, reader.header.experts) == (len(table[0]), len(table[0][0]))


def test_a_single_table_is_one_window_named_after_the_file(tmp_path: Path) -> None:
    reader = open_json_counts(write_json(tmp_path / "a.json", {"logical_count": [[1, 2], [3, 4]]}), OPTIONS)
    assert list(counts_by_window(reader)) == ["a.json"]


def test_iteration_layer_keys_are_steps_of_one_window(tmp_path: Path) -> None:
    content = {"9_2": [1, 0], "9_4": [0, 1], "10_2": [5, 5], "10_4": [6, 4]}
    reader = open_json_counts(write_json(tmp_path / "a.json", content), OPTIONS)
    assert [chunk.steps for chunk in reader.chunks()] == [1, 1]
    assert total_LE(reader).tolist() == [[0, 0], [0, 0], [6, 5], [0, 0], [6, 5]]


def test_a_missing_layer_of_an_iteration_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadCountShape, match="no 10_4"):
        open_json_counts(write_json(tmp_path / "a.json", {"9_2": [1], "9_4": [1], "10_2": [1]}), OPTIONS)


@pytest.mark.parametrize("name", ["P23", "P24", "P25", "P27"])
def test_cases_are_refused_with_their_code(name: str) -> None:
    for file in case(name)["files"]:
        with pytest.raises(CodedError, match=r"\$\.logical_count") as refused:
            open_json_counts(case_folder(name) / file, OPTIONS)
        assert refused.value.code == case(name)["expect"]["error_code"]


WRONG_VALUES = [
    ("true", BadCountType),
    ("null", BadCountType),
    ('"1"', BadCountType),
    ("5.5", BadCountType),
    ("1e-3", BadCountType),
    ("1e-999999999999999999999", BadCountType),
    ("NaN", NonFiniteCount),
    ("Infinity", NonFiniteCount),
    ("-Infinity", NonFiniteCount),
    ("-1", NegativeCount),
    ("-0.5", NegativeCount),
    ("-1e400", NegativeCount),
    ("-" + "9" * 5000, NegativeCount),
    ("9223372036854775808", CountOutOfRange),
    ("9.3e18", CountOutOfRange),
    ("1e400", CountOutOfRange),
    ("1e999999999999999999999", CountOutOfRange),
    ("9" * 5000, CountOutOfRange),
]


@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)),
    wrong=st.sampled_from(WRONG_VALUES),
    data=st.data(),
)
def test_a_wrong_value_anywhere_is_named_by_its_path(
    scratch: Path, size: tuple[int, int, int], wrong: tuple[str, type[CodedError]], data: st.DataObject
) -> None:
    place = tuple(data.draw(st.integers(0, limit - 1)) for limit in size)
    cells = [[["7"] * size[2] for _ in range(size[1])] for _ in range(size[0])]
    cells[place[0]][place[1]][place[2]] = wrong[0]
    text = ",".join("[" + ",".join("[" + ",".join(row) + "]" for row in window) + "]" for window in cells)
    with pytest.raises(wrong[1]) as refused:
        open_json_counts(write_json(scratch, f'{{"logical_count": [{text}]}}'), OPTIONS)
    window, layer, expert = place
    assert refused.value.detail.startswith(f"$.logical_count[{window}][{layer}]")
    assert f"[{expert}]" in refused.value.detail or wrong[0] == '"1"'
    assert len(refused.value.detail) < 200


@pytest.mark.parametrize(("text", "value"), [("5.0", 5), ("-0.0", 0), ("1e2", 100), ("9007199254740993.0", 2**53 + 1)])
def test_whole_numbers_are_read_however_they_are_written(tmp_path: Path, text: str, value: int) -> None:
    reader = open_json_counts(write_json(tmp_path / "a.json", f"[[{text}, 1]]"), OPTIONS)
    assert total_LE(reader).tolist() == [[value, 1]]


@pytest.mark.parametrize("value", [7, "x", None, True, {"0": [1]}])
def test_what_is_no_table_is_a_wrong_type(tmp_path: Path, value: object) -> None:
    with pytest.raises(BadCountType, match=r"\$\.logical_count of a\.json"):
        open_json_counts(write_json(tmp_path / "a.json", {"logical_count": value}), OPTIONS)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([], r"\$ "),
        ([[]], r"\$\[0\] "),
        ([1, 2], r"\$ "),
        ([[1, 2], [3]], r"\$\[1\] "),
        ([[[1, 2]], [[1, 2], [3, 4]]], r"\$\[1\] "),
        ([[[1, 2]], [[1]]], r"\$\[1\]\[0\] "),
        ([[[[1]]]], r"\$\[0\]\[0\] "),
        ([[0] * 65542], "has 65542 experts"),
        ([[1]] * 5000, "has 5000 layers"),
    ],
)
def test_ragged_empty_flat_and_deep_tables_are_refused(tmp_path: Path, content: Any, path: str) -> None:
    with pytest.raises(BadCountShape, match=path):
        open_json_counts(write_json(tmp_path / "a.json", content), OPTIONS)


def test_a_wide_first_row_claims_no_memory_for_the_others(tmp_path: Path) -> None:
    rows = [[[0] * 60000]] + [[[1]]] * 60000  # 60,000 windows of 60,000 experts would be 29 GB
    with pytest.raises(BadCountShape, match="ragged"):
        open_json_counts(write_json(tmp_path / "a.json", rows), OPTIONS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ('{"logical_count": [[1, 2]', "line 1"),
        ('{"logical_count": [[1,, 2]]}', "line 1, column 23"),
        ('{"logical_count":\n [[1], [01]]}', "line 2, column 10"),
        ('{"logical_count": [[1]], "logical_count": [[2]]}', '"logical_count" twice'),
        ('{"logical_count": [[1]], "other": [zzz]}', "column 36"),
        ('{"logical_count": [[1]], "other": ' + "9" * 5000 + "}", "thousands of digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("{[1]: 2}", "line 1, column 2"),
        ('["' + '\\"' * 200_000, "is not JSON"),
    ],
)
def test_what_is_not_json_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadJson, match=message):
        open_json_counts(write_json(tmp_path / "a.json", text), OPTIONS)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"logical_count": [[1, 2]], "x": "\xff"}')
    with pytest.raises(BadJson, match="UTF-8"):
        open_json_counts(tmp_path / "a.json", OPTIONS)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[[1, 2]]")
    assert total_LE(open_json_counts(tmp_path / "a.json", OPTIONS)).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [({"physical_to_logical_map": [[0]]}, "is a layout"), ({"x": 1}, 'JSON with "x"'), ({}, "no keys"), (3, "holds 3")],
)
def test_other_json_is_an_unknown_format(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UnknownFormat, match=message):
        open_json_counts(write_json(tmp_path / "a.json", content), OPTIONS)


def test_a_sum_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    largest = 2**63 - 1
    with pytest.raises(CountOutOfRange, match="add up"):
        open_json_counts(write_json(tmp_path / "a.json", [[largest, largest, largest]]), OPTIONS)


def test_columns_behind_the_models_experts_are_shared_experts(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"logical_count": [[3, 1, 4], [2, 2, 4]]})
    reader = open_json_counts(path, ReadOptions(experts=2))
    assert total_LE(reader).tolist() == [[3, 1], [2, 2]]
    assert codes(reader.notices) == ["SHARED_EXPERT_IDS"]
    assert "8 tokens" in reader.notices[0].detail


@pytest.mark.parametrize("experts", [2, 40])
def test_another_number_of_experts_is_another_model(tmp_path: Path, experts: int) -> None:
    path = write_json(tmp_path / "a.json", {"logical_count": [[1] * 20]})
    with pytest.raises(CodedError, match=f"the model has {experts}"):
        open_json_counts(path, ReadOptions(model=shape(1, experts)))
