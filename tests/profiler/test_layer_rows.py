"""Rows counted by decoder layer, by MoE layer or by label end up in the same decoder layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.model_shape import ModelShape
from profiler.errors import BadCountShape, InputsDisagree
from profiler.readers.json_counts import open_json_counts
from profiler.readers.layer_rows import decoder_layer_rows
from profiler.readers.options import ReadOptions
from tests.case_files import case, case_folder
from tests.profiler.recordings import codes, shape, total_LE


def p16_model() -> ModelShape:
    config = {**case("P16")["params"], "num_experts": 4, "num_experts_per_tok": 2}
    return ModelShape.from_config(config)


@pytest.mark.parametrize("name", ["sglang.json", "vllm_rows.json", "trtllm_keys.json"])
def test_p16_three_numberings_are_one_profile(name: str) -> None:
    reader = open_json_counts(case_folder("P16") / name, ReadOptions(model=p16_model()))
    expected = np.zeros((5, 4), dtype=np.int64)
    expected[case("P16")["expect"]["oracle"]["decoder_layer_of_moe_ordinal"]] = [
        [1, 2, 3, 4],
        [4, 3, 2, 1],
        [9, 1, 1, 1],
    ]
    assert np.array_equal(total_LE(reader), expected)
    assert reader.header.layers == 5
    assert reader.notices == ()


def test_p16_without_a_model_rows_stay_and_doubt_is_said() -> None:
    folder = case_folder("P16")
    assert open_json_counts(folder / "sglang.json", ReadOptions()).notices == ()
    doubtful = open_json_counts(folder / "vllm_rows.json", ReadOptions())
    assert codes(doubtful.notices) == ["LAYERS_ASSUMED"]
    assert doubtful.header.layers == 3
    assert open_json_counts(folder / "trtllm_keys.json", ReadOptions()).header.layers == 5


@st.composite
def models(draw: st.DrawFn) -> ModelShape:
    layers = draw(st.integers(1, 12))
    moe = draw(st.sets(st.integers(0, layers - 1), min_size=1))
    draft = draw(st.integers(0, 2))
    return ModelShape(layers=layers, experts=4, top_k=2, moe_layers=tuple(sorted(moe)), draft_layers=draft)


@given(model=models(), data=st.data())
def test_every_numbering_of_every_model_is_understood(model: ModelShape, data: st.DataObject) -> None:
    moe = list(model.moe_layers)
    drafts = data.draw(st.integers(0, model.draft_layers))
    beyond = [model.layers + index for index in range(drafts)]
    by_decoder = decoder_layer_rows(
        name="x",
        row_count=model.layers + drafts,
        has_traffic=[layer in moe for layer in range(model.layers)] + [True] * drafts,
        model=model,
    )
    by_ordinal = decoder_layer_rows(
        name="x", row_count=len(moe) + drafts, has_traffic=[True] * (len(moe) + drafts), model=model
    )
    by_label = decoder_layer_rows(name="x", row_count=len(moe) + drafts, labels=moe + beyond, model=model)
    assert by_decoder.layer_of_row == (*range(model.layers), *[None] * drafts)
    assert by_label.layer_of_row == by_ordinal.layer_of_row == (*moe, *[None] * drafts)
    for rows in (by_decoder, by_ordinal, by_label):
        assert rows.layers == model.layers
        assert codes(rows.notices) == (["DRAFT_LAYERS_LEFT_OUT"] if drafts else [])


def test_labels_may_be_moe_ordinals() -> None:
    rows = decoder_layer_rows(
        name="x", row_count=3, labels=[0, 1, 2], has_traffic=[True] * 3, model=shape(5, 4, dense=2)
    )
    assert rows.layer_of_row == (2, 3, 4)


def test_a_row_count_that_fits_twice_is_decided_by_the_dense_rows() -> None:
    model = shape(4, 4, dense=1, draft=1)  # 4 decoder layers, or 3 with experts and a draft layer
    zero_first = decoder_layer_rows(name="x", row_count=4, has_traffic=[False, True, True, True], model=model)
    all_busy = decoder_layer_rows(name="x", row_count=4, has_traffic=[True] * 4, model=model)
    unknown = decoder_layer_rows(name="x", row_count=4, model=model)
    assert zero_first.layer_of_row == (0, 1, 2, 3)
    assert all_busy.layer_of_row == (1, 2, 3, None)
    assert unknown.layer_of_row == (0, 1, 2, 3)
    assert codes(unknown.notices) == ["LAYERS_ASSUMED"]


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_row_counts_that_fit_no_numbering_are_refused(rows: int) -> None:
    with pytest.raises(InputsDisagree, match=r"needs 5 \(all decoder layers\) or 3"):
        decoder_layer_rows(name="x", row_count=rows, has_traffic=[True] * rows, model=shape(5, 4, dense=2))


def test_traffic_in_a_dense_layer_is_another_model() -> None:
    with pytest.raises(InputsDisagree, match="dense layers have traffic"):
        decoder_layer_rows(name="x", row_count=9, has_traffic=[True] * 9, model=shape(9, 4, dense=4))
    with pytest.raises(InputsDisagree, match="labelled 0, 5"):
        decoder_layer_rows(name="x", row_count=2, labels=[0, 5], has_traffic=[True] * 2, model=shape(6, 4, dense=3))


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, -1], "layer -1"), ([1, 1], "layer 1 twice"), ([0, 10**9], "1000000000"), ([0], "1 layer")],
)
def test_impossible_labels_are_refused(labels: list[int], message: str) -> None:
    with pytest.raises(BadCountShape, match=message):
        decoder_layer_rows(name="x", row_count=2, labels=labels)


@pytest.mark.parametrize("rows", [0, 5000])
def test_impossible_row_counts_are_refused(rows: int) -> None:
    with pytest.raises(BadCountShape):
        decoder_layer_rows(name="x", row_count=rows)


def test_rows_are_placed_and_gaps_filled(tmp_path: Path) -> None:
    rows = decoder_layer_rows(name="x", row_count=3, labels=[4, 1, 6], model=shape(5, 4, dense=1, draft=2))
    placed = rows.place(np.array([[10], [20], [30]]), fill=-1)
    assert placed.tolist() == [[-1], [20], [-1], [-1], [10]]
    assert rows.place(np.array([[7, 8, 9]]), axis=1, fill=0).tolist() == [[0, 8, 0, 0, 7]]
