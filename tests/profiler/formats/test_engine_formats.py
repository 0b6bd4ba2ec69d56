"""vLLM, TensorRT-LLM and vllm-ascend: what is written comes back, and what a format cannot hold is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import (
    BadMapShape,
    BadOption,
    CodedError,
    DuplicateOnDevice,
    LayoutMismatch,
    SlotCountMismatch,
)
from placement.layout import Layout, layout_from_hosts
from placement.model_shape import ModelShape
from profiler.errors import ExportNameInvalid, ExportNeedsModel, UnknownFormat
from profiler.formats import EXPORTERS, export_layout, read_layout
from tests.case_files import case, case_folder

FORMATS = ["vllm", "tensorrt-llm", "vllm-ascend"]


def p16_model() -> ModelShape:
    """Five decoder layers, the first two dense, as in the case."""
    return ModelShape.from_config({**case("P16")["params"], "num_experts": 4, "num_experts_per_tok": 2})


TRIVIAL = [[0, 1, 2], [3, 0, 1]]
HOSTS = [TRIVIAL, TRIVIAL, [[0, 1, 2], [3, 2, 1]], [[3, 2, 1], [0, 1, 2]], [[1, 0, 3], [2, 1, 0]]]


def p16_layout() -> Layout:
    return Layout(np.array(HOSTS).reshape(len(HOSTS), -1), gpus=2, experts=4)


def exported(folder: Path, layout: Layout, format: str, model: ModelShape | None) -> Path:
    path = folder / f"layout{EXPORTERS[format].suffix}"
    export_layout(layout, format=format, out=path, model=model)
    return path


# Layer numbering: the kind of case P16


def test_each_engine_gets_its_own_layer_numbers(tmp_path: Path) -> None:
    layers = case("P16")["expect"]["oracle"]["decoder_layer_of_moe_ordinal"]
    moe = p16_layout().slot_to_expert_LP[layers].tolist()

    record = json.loads(exported(tmp_path, p16_layout(), "vllm", p16_model()).read_text())
    assert record == {
        "record_type": "eplb_initial_mapping",
        "version": 1,
        "num_redundant_experts": 2,
        "num_slots": 6,
        "initial_global_assignments": {"0": moe[0], "1": moe[1], "2": moe[2]},
    }

    document = yaml.safe_load(exported(tmp_path, p16_layout(), "tensorrt-llm", p16_model()).read_text())
    assert document == {
        "initial_global_assignments": dict(zip(layers, moe, strict=True)),
        "layer_updates_per_iter": 0,
        "num_slots": 6,
    }

    expert_map = json.loads(exported(tmp_path, p16_layout(), "vllm-ascend", p16_model()).read_text())
    assert expert_map["moe_layer_count"] == 3
    assert [layer["layer_id"] for layer in expert_map["layer_list"]] == [0, 1, 2]
    assert [
        [device["device_expert"] for device in layer["device_list"]] for layer in expert_map["layer_list"]
    ] == HOSTS[2:]


@pytest.mark.parametrize("format", FORMATS)
def test_a_plan_with_rows_for_moe_layers_only_gives_the_same_file(tmp_path: Path, format: str) -> None:
    moe_only = Layout(p16_layout().slot_to_expert_LP[2:], gpus=2, experts=4)
    whole = exported(tmp_path, p16_layout(), format, p16_model()).read_bytes()
    assert exported(tmp_path, moe_only, format, p16_model()).read_bytes() == whole


@pytest.mark.parametrize("format", FORMATS)
def test_without_the_model_nobody_can_tell_which_layers_are_dense(tmp_path: Path, format: str) -> None:
    with pytest.raises(ExportNeedsModel, match="--model"):
        exported(tmp_path, p16_layout(), format, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("other", [{"experts": 5}, {"layers": 9}])
def test_a_layout_for_another_model_is_refused(tmp_path: Path, format: str, other: dict[str, int]) -> None:
    shape: dict[str, Any] = {"layers": 5, "experts": 4, "top_k": 2, **other}
    with pytest.raises(LayoutMismatch):
        exported(tmp_path, p16_layout(), format, ModelShape(**shape, moe_layers=(2, 3)))
    assert list(tmp_path.iterdir()) == []


# Round trips


@st.composite
def planned(draw: st.DrawFn) -> tuple[Layout, ModelShape]:
    """A layout as plans are: no expert twice on a GPU, dense layers with the trivial row."""
    gpus, layers = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    experts = draw(st.integers(1, 8))
    per_gpu = draw(st.integers(-(-experts // gpus), experts))
    dense = draw(st.integers(0, layers - 1))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    trivial_P = np.arange(gpus * per_gpu) % experts
    rows = [generator.permutation(experts)[trivial_P] if layer >= dense else trivial_P for layer in range(layers)]
    layout = Layout(np.array(rows), gpus=gpus, experts=experts)
    return layout, ModelShape(layers=layers, experts=experts, top_k=1, moe_layers=tuple(range(dense, layers)))


@settings(deadline=None, max_examples=40)
@given(planned(), st.sampled_from(FORMATS))
def test_every_plan_comes_back(
    tmp_path_factory: pytest.TempPathFactory, plan: tuple[Layout, ModelShape], format: str
) -> None:
    layout, model = plan
    if layout.duplicated_slots():
        return
    path = exported(tmp_path_factory.getbasetemp(), layout, format, model)
    again, _ = read_layout(path, gpus=layout.gpus, model=model, layers=layout.layers, slots=layout.slots)
    assert again == layout
    assert again.hash == layout.hash


def test_tensorrt_llm_rows_say_their_decoder_layer_even_without_a_model(tmp_path: Path) -> None:
    path = exported(tmp_path, p16_layout(), "tensorrt-llm", p16_model())
    layout, notices = read_layout(path, gpus=2, experts=4, layers=5)
    assert layout == p16_layout()
    assert [notice.code for notice in notices] == ["LAYERS_LEFT_OUT"]


@pytest.mark.parametrize("format", ["vllm", "vllm-ascend"])
def test_rows_counted_by_moe_layer_need_the_model_to_fit_decoder_layers(tmp_path: Path, format: str) -> None:
    path = exported(tmp_path, p16_layout(), format, p16_model())
    assert read_layout(path, gpus=2)[0].layers == 3
    with pytest.raises(LayoutMismatch, match="--model"):
        read_layout(path, gpus=2, layers=5)


# What a format cannot hold, and what engines do with the files


def test_an_expert_twice_on_a_device_is_refused_for_vllm_ascend(tmp_path: Path) -> None:
    """The kind of case U14, on the way out."""
    twice = layout_from_hosts([[[0, 0, 1], [2, 3, 1]]], experts=4)
    model = ModelShape(layers=1, experts=4, top_k=1, moe_layers=(0,))
    with pytest.raises(DuplicateOnDevice, match="device 0 holds expert 0 twice"):
        exported(tmp_path, twice, "vllm-ascend", model)
    assert DuplicateOnDevice.code == case("U14")["expect"]["error_code"]
    assert list(tmp_path.iterdir()) == []


def test_a_written_file_is_never_called_applied_for_tensorrt_llm(tmp_path: Path) -> None:
    """Case U13: the engine may ignore the file without a word."""
    notices = export_layout(p16_layout(), format="tensorrt-llm", out=tmp_path / "a.yaml", model=p16_model())
    assert [notice.code for notice in notices] == [case("U13")["expect"]["error_code"]]


def test_further_keys_are_left_out_and_never_written(tmp_path: Path) -> None:
    """Case U06: the engine's strict model refuses any key but its three."""
    engine = case("U06")["params"]["engine"]
    path = case_folder("U06") / "trt_extra.yaml"
    layout, notices = read_layout(path, gpus=engine["ep_size"], experts=engine["num_experts"])
    assert layout.slot_to_expert_LP.tolist() == [[0, 1, 2, 3, 0, 1]]
    assert [notice.code for notice in notices] == ["EXTRA_KEYS"]
    model = ModelShape(layers=1, experts=4, top_k=1, moe_layers=(0,))
    written = yaml.safe_load(exported(tmp_path, layout, "tensorrt-llm", model).read_text())
    assert set(written) == {"num_slots", "initial_global_assignments", "layer_updates_per_iter"}


def test_it_is_said_that_no_released_vllm_reads_a_layout(tmp_path: Path) -> None:
    notices = export_layout(p16_layout(), format="vllm", out=tmp_path / "a.jsonl", model=p16_model())
    assert [notice.code for notice in notices] == ["NO_RELEASED_READER"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_name_the_engine_does_not_take_is_refused(tmp_path: Path, format: str) -> None:
    with pytest.raises(ExportNameInvalid, match=EXPORTERS[format].suffix):
        export_layout(p16_layout(), format=format, out=tmp_path / "layout.txt", model=p16_model())


# Files that are broken

GOOD: dict[str, Any] = {"num_slots": 4, "initial_global_assignments": {0: [0, 1, 2, 3], 1: [3, 2, 1, 0]}}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_slots": 5}, SlotCountMismatch),
        ({"num_slots": True}, SlotCountMismatch),
        ({"initial_global_assignments": {}}, BadMapShape),
        ({"initial_global_assignments": [[0, 1, 2, 3]]}, BadMapShape),
        ({"initial_global_assignments": {"-1": [0, 1, 2, 3]}}, BadMapShape),
        ({"initial_global_assignments": {"01": [0, 1, 2, 3]}}, BadMapShape),
        ({"initial_global_assignments": {1: [0, 1, 2, 3], "1": [0, 1, 2, 3]}}, BadMapShape),
        ({"initial_global_assignments": {99999: [0, 1, 2, 3]}}, BadMapShape),
        ({"initial_global_assignments": {0: [0, 1, 2, 3], 1: [0, 1, 2]}}, BadMapShape),
        ({"initial_global_assignments": {0: [0, 1, 2, "3"]}}, BadMapShape),
        ({"initial_global_assignments": {0: [0, 1, 2, None]}}, BadMapShape),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path: Path, change: dict[str, Any], error: type[CodedError]) -> None:
    path = tmp_path / "layout.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **change}))
    with pytest.raises(error) as caught:
        read_layout(path, gpus=2, experts=4)
    assert caught.value.detail.endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        "initial_global_assignments: {0: [0, 1",
        "a: &x [1]\nb: *x\n",
        "!!python/object/apply:os.getcwd []",
        "[" * 5000,
        "\x00",
        "- 1\n- 2\n",
        "",
    ],
)
def test_yaml_of_other_than_plain_values_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "layout.yaml"
    path.write_text(text)
    with pytest.raises(UnknownFormat):
        read_layout(path, gpus=2)


@pytest.mark.parametrize("change", [{"version": 2}, {"num_redundant_experts": 4}, {"num_redundant_experts": None}])
def test_vllm_records_of_another_kind_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    record = {"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": 0, **GOOD, **change}
    path = tmp_path / "layout.jsonl"
    path.write_text(json.dumps(record))
    with pytest.raises(BadMapShape):
        read_layout(path, gpus=2)


def test_files_that_name_no_gpus_need_their_number(tmp_path: Path) -> None:
    path = exported(tmp_path, p16_layout(), "vllm", p16_model())
    with pytest.raises(BadOption, match="GPUs"):
        read_layout(path, gpus=None)
