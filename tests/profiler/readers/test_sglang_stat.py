"""Stat dumps: counts per step of a ring, of which unused steps are zero and dense layers have no traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.errors import NegativeCount
from profiler.errors import BadCountShape, BadCountType, InputsDisagree, NonFiniteCount, UnknownFormat
from profiler.trace import CountChunk
from profiler.writers.sglang_dump import write_stat
from tests.case_files import case, case_folder
from tests.profiler.readers.sglang_files import opened, rng
from tests.profiler.recordings import DATA, codes, shape, total_LE

RECORDINGS = Path(__file__).parents[4] / "shared" / "tiny-moe" / "recordings"


def save(path: Path, counts: Any, **more: Any) -> Path:
    torch.save({"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None, **more}, path)
    return path


def test_unused_steps_of_the_case_are_left_out() -> None:
    reader = opened(case_folder("P21") / "dump.pt")
    oracle = case("P21")["expect"]["oracle"]
    assert reader.facts()["used_steps"] == oracle["used_steps"]
    assert total_LE(reader).tolist() == oracle["sum"]
    assert [chunk.steps for chunk in reader.chunks() if isinstance(chunk, CountChunk)] == [1, 1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(used=st.lists(st.booleans(), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_unused_steps_anywhere_change_nothing(tmp_path: Path, used: list[bool], seed: int) -> None:
    """A ring that was reset or not yet filled has its unused steps anywhere."""
    counts_NLE = rng(seed).integers(1, 50, size=(len(used), 3, 8)) * np.array(used)[:, None, None]
    path = tmp_path / "ring.pt"
    write_stat(path, counts_NLE)
    reader = opened(path)
    chunks = [chunk for chunk in reader.chunks() if isinstance(chunk, CountChunk)]
    assert reader.facts()["used_steps"] == sum(used) == sum(chunk.steps for chunk in chunks)
    assert {chunk.window for chunk in chunks} == {"ring.pt"}
    np.testing.assert_array_equal(total_LE(reader), counts_NLE.sum(axis=0))
    np.testing.assert_array_equal(total_LE(reader), counts_NLE.sum(axis=0))  # and a second time


def test_one_table_without_steps_is_one_window_of_unknown_length(tmp_path: Path) -> None:
    counts_LE = rng().integers(0, 9, size=(2, 6))
    reader = opened(save(tmp_path / "table.pt", torch.tensor(counts_LE)))
    (chunk,) = reader.chunks()
    assert isinstance(chunk, CountChunk)
    assert chunk.steps == 0
    assert "used_steps" not in reader.facts()
    np.testing.assert_array_equal(chunk.tokens_LSE[:, 0], counts_LE)


@pytest.mark.parametrize("name", ["P13"])
def test_the_empty_dump_of_the_case_keeps_its_shape(name: str) -> None:
    """That nothing can be planned from it is for the demand to say."""
    reader = opened(case_folder(name) / "dump.pt")
    (chunk,) = reader.chunks()
    assert isinstance(chunk, CountChunk)
    assert chunk.tokens_LSE.shape == (3, 1, 8)
    assert int(chunk.tokens_LSE.sum()) == case(name)["expect"]["oracle"]["sum"]
    assert chunk.steps == 0
    assert reader.facts()["used_steps"] == 0


def test_a_ring_of_no_steps_is_empty_too(tmp_path: Path) -> None:
    reader = opened(save(tmp_path / "none.pt", torch.zeros((0, 3, 8), dtype=torch.int32)))
    assert total_LE(reader).tolist() == [[0] * 8] * 3


def test_dense_layers_of_the_case_keep_their_row() -> None:
    reader = opened(case_folder("P12") / "dump.pt")
    busy_L = total_LE(reader).any(axis=1)
    assert np.flatnonzero(busy_L).tolist() == case("P12")["expect"]["oracle"]["moe_layers"]
    assert reader.header.layers == 4
    assert reader.notices == ()


def test_the_model_tells_draft_rows_and_dense_layers(tmp_path: Path) -> None:
    counts_NLE = rng().integers(1, 9, size=(2, 5, 8))
    counts_NLE[:, 0] = 0
    path = tmp_path / "draft.pt"
    write_stat(path, counts_NLE)
    reader = opened(path, model=shape(4, 8, dense=1, top_k=2, draft=1))
    assert reader.header.layers == 4
    assert reader.header.top_k == 2
    assert codes(reader.notices) == ["DRAFT_LAYERS_LEFT_OUT"]
    np.testing.assert_array_equal(total_LE(reader), counts_NLE.sum(axis=0)[:4])


@pytest.mark.parametrize(
    ("counts", "error"),
    [
        (torch.tensor([[[1.0, float("nan")]]]), NonFiniteCount),
        (torch.tensor([[[1.0, float("inf")]]]), NonFiniteCount),
        (torch.tensor([[[1.0, 2.5]]]), BadCountType),
        (torch.tensor([[[True, False]]]), BadCountType),
        (torch.tensor([[[3, -1]]]), NegativeCount),
        (torch.tensor([3, 1]), BadCountShape),
        (torch.zeros(1, 1, 1, 2), BadCountShape),
        (torch.zeros(4, 0, 8), BadCountShape),
        (torch.zeros(4, 8, 0), BadCountShape),
        (torch.zeros(2**22 + 1, 1, 1, dtype=torch.int8), BadCountShape),
        (torch.zeros(1, 2**12, 2**11, dtype=torch.int8), BadCountShape),
        ([[1, 2], [3, 4]], BadCountType),
        (None, BadCountType),
    ],
    ids=[
        "nan",
        "inf",
        "fraction",
        "bool",
        "negative",
        "flat",
        "deep",
        "no layers",
        "no experts",
        "endless",
        "huge",
        "list",
        "none",
    ],
)
def test_counts_that_are_none_are_refused(tmp_path: Path, counts: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        opened(save(tmp_path / "bad.pt", counts))


def test_whole_numbers_of_any_type_are_counts(tmp_path: Path) -> None:
    for dtype in (torch.uint8, torch.int16, torch.int64, torch.float32, torch.float64):
        reader = opened(save(tmp_path / "typed.pt", torch.tensor([[[1, 2, 3]]], dtype=dtype)))
        assert total_LE(reader).tolist() == [[1, 2, 3]]


def test_the_step_of_a_wrong_count_is_named(tmp_path: Path) -> None:
    counts = torch.ones((5, 2, 4), dtype=torch.int32)
    counts[3, 1, 2] = -7
    with pytest.raises(NegativeCount, match=r"step 3\)\[1\]\[2\] is -7"):
        opened(save(tmp_path / "bad.pt", counts))


def test_another_number_of_experts_than_given_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "other.pt", torch.ones((2, 3, 8), dtype=torch.int32))
    assert opened(path, experts=8).header.experts == 8
    with pytest.raises(InputsDisagree, match="8 experts"):
        opened(path, experts=16)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"physical_to_logical_map": torch.zeros(2, 4)}, "a layout"),
        ({"weights": torch.zeros(2, 4)}, "weights"),
        ([1, 2], "a list"),
        ({}, "a dict"),
    ],
)
def test_other_contents_are_named(tmp_path: Path, content: Any, found: str) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(UnknownFormat, match=found):
        opened(tmp_path / "other.pt")


def test_a_dump_of_a_real_engine() -> None:
    reader = opened(DATA / "sglang" / "stat_mixed.pt")
    assert (reader.header.layers, reader.header.experts) == (6, 32)
    assert (reader.facts()["steps"], reader.facts()["used_steps"]) == (40, 36)
    per_layer_L = total_LE(reader).sum(axis=1)
    assert len(set(per_layer_L.tolist())) == 1  # every token passes every layer
    assert int(per_layer_L[0]) % 4 == 0  # top-4


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the full recordings are not beside the project")
def test_real_stat_counts_are_shares_not_tokens() -> None:
    """Without an all-to-all backend both ranks count every token, and padding: twice the requests' own."""
    counted_LE = total_LE(opened(RECORDINGS / "stat_mixed.pt"))
    topk_LTK = np.load(RECORDINGS / "trace_mixed.npz")["topk"]
    routed_LE = np.stack([np.bincount(topk_TK.ravel(), minlength=32) for topk_TK in topk_LTK])
    assert counted_LE.sum() / routed_LE.sum() == pytest.approx(2.014, abs=0.001)
    counted_LE, routed_LE = (table_LE / table_LE.sum(axis=1, keepdims=True) for table_LE in (counted_LE, routed_LE))
    assert float(np.abs(counted_LE - routed_LE).sum(axis=1).max()) / 2 < 0.003  # total variation of the worst layer
