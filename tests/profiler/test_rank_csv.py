"""Rank CSVs: summed, never picked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import CodedError, CountOutOfRange, NegativeCount
from profiler.errors import BadCountShape, BadCountType, MissingRanks, NonFiniteCount, UnreadableDump
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.readers.rank_csv import open_rank_csvs
from tests.case_files import case, case_folder
from tests.profiler.recordings import codes, shape, total_LE

HEADER = "layer_id,expert_id,count\n"


def write_ranks(folder: Path, *texts: str) -> list[Path]:
    paths = []
    for rank, text in enumerate(texts):
        path = folder / f"expert_distribution_rank{rank}_timestamp{9 - rank}.5.csv"
        path.write_text(HEADER + text)
        paths.append(path)
    return paths


@pytest.mark.parametrize("given_as", ["folder", "files", "files reversed"])
def test_p01_ranks_are_summed_and_reported(given_as: str) -> None:
    folder = case_folder("P01")
    files = sorted(folder.glob("*.csv"))
    paths = {"folder": [folder], "files": files, "files reversed": files[::-1]}[given_as]
    (reader,) = open_inputs(paths, ReadOptions(experts=64))
    total = total_LE(reader)
    found = {
        str(layer): {str(expert): int(total[layer, expert]) for expert in np.flatnonzero(total[layer])}
        for layer in np.flatnonzero(total.any(axis=1))
    }
    assert found == case("P01")["expect"]["oracle"]["sum"]
    assert reader.facts()["ranks_merged"] == [0, 1, 2]
    assert reader.header.source_ranks is None
    assert reader.notices == ()


counts = st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 9)), st.integers(0, 10**12), max_size=20)


@given(ranks=st.lists(counts, min_size=1, max_size=4), data=st.data())
def test_any_ranks_in_any_row_order_add_up(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[dict[tuple[int, int], int]], data: st.DataObject
) -> None:
    ranks[0].setdefault((5, 9), 1)
    texts = []
    for rank in ranks:
        rows = data.draw(st.permutations(sorted(rank.items())))
        texts.append("".join(f"{layer},{expert},{count}\n" for (layer, expert), count in rows))
    paths = write_ranks(tmp_path_factory.mktemp("csv"), *texts)
    expected = np.zeros((6, 10), dtype=np.int64)
    for rank in ranks:
        for place, count in rank.items():
            expected[place] += count
    reader = open_rank_csvs(paths, ReadOptions(), name="x")
    assert np.array_equal(total_LE(reader), expected)
    assert "EXPERTS_ASSUMED" in codes(reader.notices)


def test_spaces_quotes_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.csv"
    path.write_bytes(b'\xef\xbb\xbflayer_id, "expert_id",count\r\n0 , 1,"5.0"\r\n\r\n')
    (reader,) = open_inputs([path], ReadOptions(experts=2))
    assert total_LE(reader).tolist() == [[0, 5]]


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ("0,1", UnreadableDump, "line 3 .* 2 fields"),
        ("0,1,2,3", UnreadableDump, "4 fields"),
        ("x,1,2", BadCountType, "layer_id 'x'"),
        ("-1,1,2", BadCountType, "layer_id"),
        ("0,1.5,2", BadCountType, "expert_id"),
        ("0,1,", BadCountType, "count ''"),
        ("0,1,true", BadCountType, "'true'"),
        ("0,1,1.5", BadCountType, "1.5"),
        ("0,1,-2", NegativeCount, "-2"),
        ("0,1,nan", NonFiniteCount, "nan"),
        ("0,1,-inf", NonFiniteCount, "inf"),
        ("0,1,9223372036854775808", CountOutOfRange, "line 3"),
        ("0,1,1e400", CountOutOfRange, "line 3"),
        ("0,0,2", BadCountShape, r"layer 0, expert 0 again \(first on 2\)"),
        ("9999999,1,2", BadCountShape, "below 4096"),
        ("0,99999999999999999999,2", BadCountShape, "below"),
    ],
)
def test_a_wrong_row_is_named_by_its_line(tmp_path: Path, row: str, error: type[CodedError], message: str) -> None:
    with pytest.raises(error, match=message):
        open_rank_csvs(write_ranks(tmp_path, f"0,0,1\n{row}\n"), ReadOptions(), name="x")


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCountShape, match="only the header"):
        open_rank_csvs(write_ranks(tmp_path, ""), ReadOptions(), name="x")


def test_labels_that_would_make_a_huge_table_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{layer},60000,1\n" for layer in range(4000))
    with pytest.raises(BadCountShape, match="4000 layers x 60001"):
        open_rank_csvs(write_ranks(tmp_path, rows), ReadOptions(), name="x")


def test_a_gap_in_the_ranks_keeps_from_planning(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path, "0,0,1\n", "0,1,1\n", "0,2,1\n")
    reader = open_rank_csvs([paths[0], paths[2]], ReadOptions(experts=3), name="x")
    assert codes(reader.notices) == ["MISSING_RANKS"]
    with pytest.raises(MissingRanks, match="rank 1"):
        reader.require_complete()


def test_fewer_ranks_than_expected_keep_from_planning_unless_allowed(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path, "0,0,1\n", "0,1,1\n")
    open_rank_csvs(paths, ReadOptions(experts=2, expected_ranks=2), name="x").require_complete()
    with pytest.raises(MissingRanks, match="rank 2, 3"):
        open_rank_csvs(paths, ReadOptions(experts=2, expected_ranks=4), name="x").require_complete()
    partial = open_rank_csvs(paths, ReadOptions(experts=2, expected_ranks=4, allow_partial=True), name="x")
    partial.require_complete()
    assert codes(partial.notices) == ["MISSING_RANKS"]


def test_several_dumps_of_each_rank_add_up_and_a_lacking_one_is_noticed(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path, "0,0,1\n", "0,1,1\n")
    again = tmp_path / "expert_distribution_rank0_timestamp99.csv"
    again.write_text(HEADER + "0,0,10\n")
    reader = open_rank_csvs([*paths, again], ReadOptions(experts=2), name="x")
    assert total_LE(reader).tolist() == [[11, 1]]
    with pytest.raises(MissingRanks, match="rank 1"):
        reader.require_complete()


def test_equal_ranks_are_said_to_have_counted_everything(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path, "0,0,4\n0,1,2\n", "0,1,2\n0,0,4\n")
    reader = open_rank_csvs(paths, ReadOptions(experts=2), name="x")
    assert codes(reader.notices) == ["SOURCES_REPEATED"]
    assert total_LE(reader).tolist() == [[8, 4]]


def test_layers_are_placed_by_the_model(tmp_path: Path) -> None:
    reader = open_rank_csvs(write_ranks(tmp_path, "2,0,1\n4,3,1\n"), ReadOptions(model=shape(6, 4, dense=2)), name="x")
    assert total_LE(reader).shape == (6, 4)
    assert np.argwhere(total_LE(reader)).tolist() == [[2, 0], [4, 3]]
