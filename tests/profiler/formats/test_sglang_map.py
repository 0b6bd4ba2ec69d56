"""SGLang's layout JSON: the reported failures as whole kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placement.errors import (
    BadMapShape,
    ExpertIdRange,
    ExpertMissing,
    LayoutMismatch,
    SlotCountMismatch,
    SlotsNotDivisible,
)
from placement.layout import Layout
from profiler.errors import BadJson
from profiler.formats import export_layout, read_layout
from tests.case_files import case, case_folder
from tests.profiler.formats.map_files import ROW, sglang_file


def _engine(name: str) -> dict[str, Any]:
    engine = case(name)["params"]["engine"]
    return {
        "gpus": engine["ep_size"],
        "experts": engine["num_experts"],
        "layers": engine["num_layers"],
        "slots": engine["num_experts"] + engine["num_redundant"],
    }


# U01: an expert without a slot


def test_u01_missing_expert_is_named() -> None:
    where = case("U01")["expect"]["oracle"]
    with pytest.raises(ExpertMissing) as caught:
        read_layout(case_folder("U01") / "map.json", **_engine("U01"))
    assert f"layer {where['layer']} has no slot for expert {where['expert']}" in caught.value.detail
    assert caught.value.code == case("U01")["expect"]["error_code"]


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("expert", [0, 1, 2, 3])
def test_any_missing_expert_is_named(tmp_path: Path, layer: int, expert: int) -> None:
    rows = [list(ROW) for _ in range(3)]
    rows[layer] = [(each + 1) % 4 if each == expert else each for each in rows[layer]]
    with pytest.raises(ExpertMissing, match=f"layer {layer} has no slot for expert {expert}"):
        read_layout(sglang_file(tmp_path, rows), gpus=2, experts=4)


def test_more_experts_than_slots_is_a_missing_expert(tmp_path: Path) -> None:
    with pytest.raises(ExpertMissing, match="no slot for expert 4: 6 slots cannot hold 1000000 experts"):
        read_layout(sglang_file(tmp_path, [ROW]), gpus=2, experts=1_000_000)


def test_an_absurd_id_needs_no_table_of_its_size(tmp_path: Path) -> None:
    with pytest.raises(ExpertMissing, match="expert 4"):
        read_layout(sglang_file(tmp_path, [[0, 1, 2, 3, 0, 2**31 - 1]]), gpus=2)


# U02: ids outside 0..E-1


def test_u02_negative_id_is_named() -> None:
    where = case("U02")["expect"]["oracle"]
    with pytest.raises(ExpertIdRange) as caught:
        read_layout(case_folder("U02") / "map.json", **_engine("U02"))
    assert f"layer {where['layer']}, slot {where['slot']} names expert -1" in caught.value.detail


@pytest.mark.parametrize("bad", [-1, -(2**31), 4, 255, 2**31, -(2**40), 2**63, 10**30])
@pytest.mark.parametrize(("layer", "slot"), [(0, 0), (1, 5), (2, 3)])
def test_any_id_out_of_range_is_named(tmp_path: Path, bad: int, layer: int, slot: int) -> None:
    rows = [list(ROW) for _ in range(3)]
    rows[layer][slot] = bad
    with pytest.raises(ExpertIdRange, match=f"layer {layer}, slot {slot} .*ids run from 0"):
        read_layout(sglang_file(tmp_path, rows), gpus=2, experts=4)


def test_a_negative_id_is_refused_when_the_experts_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(ExpertIdRange, match="slot 5 names expert -1"):
        read_layout(sglang_file(tmp_path, [[0, 1, 2, 3, 0, -1]]), gpus=2)
    with pytest.raises(ExpertIdRange, match="slot 0 names expert -2"):
        read_layout(sglang_file(tmp_path, [[-2, -2]]), gpus=2)


# U04: the width of another engine


def test_u04_width_of_another_engine_is_refused() -> None:
    oracle = case("U04")["expect"]["oracle"]
    with pytest.raises(SlotCountMismatch) as caught:
        read_layout(case_folder("U04") / "map.json", **_engine("U04"))
    assert f"expected {oracle['expected']}, got {oracle['got']}" in caught.value.detail


@pytest.mark.parametrize("width", [4, 5, 7, 8, 288])
def test_any_other_width_is_refused(tmp_path: Path, width: int) -> None:
    path = sglang_file(tmp_path, [[slot % 4 for slot in range(width)]])
    with pytest.raises(SlotCountMismatch, match=f"expected 6, got {width}"):
        read_layout(path, gpus=2, experts=4, slots=6)


def test_the_right_width_is_kept(tmp_path: Path) -> None:
    layout, notices = read_layout(sglang_file(tmp_path, [ROW]), gpus=2, experts=4, slots=6, layers=1)
    assert layout == Layout(np.array([ROW]), gpus=2, experts=4)
    assert notices == []


@pytest.mark.parametrize("layers", [1, 3, 61])
def test_other_layers_are_refused(tmp_path: Path, layers: int) -> None:
    with pytest.raises(LayoutMismatch, match=f"has 2 layers; expected {layers}"):
        read_layout(sglang_file(tmp_path, [ROW, ROW]), gpus=2, experts=4, layers=layers)


def test_slots_must_divide_by_the_gpus(tmp_path: Path) -> None:
    with pytest.raises(SlotsNotDivisible, match="6 slots do not divide by 4 GPUs"):
        read_layout(sglang_file(tmp_path, [ROW]), gpus=4, experts=4)


# U06: further keys


def test_u06_further_keys_are_left_out_and_not_written_again(tmp_path: Path) -> None:
    layout, notices = read_layout(case_folder("U06") / "map_with_extras.json", **_engine("U06"))
    (notice,) = notices
    assert notice.code == "EXTRA_KEYS"
    assert "logical_to_all_physical_map, meta" in notice.detail
    export_layout(layout, format="sglang", out=tmp_path / "out.json")
    assert list(json.loads((tmp_path / "out.json").read_text())) == case("U06")["expect"]["oracle"]["keys"]


@pytest.mark.parametrize("key", ["meta", "logical_count", "moe_ep_rank", "", "formát"])
def test_any_further_key_is_left_out(tmp_path: Path, key: str) -> None:
    layout, notices = read_layout(sglang_file(tmp_path, [ROW], **{key: [1]}), gpus=2, experts=4)
    assert layout.slot_to_expert_LP.tolist() == [ROW]
    assert [notice.code for notice in notices] == ["EXTRA_KEYS"]
    assert key in notices[0].detail


# U07: ids as fractions, flat lists


def test_u07_whole_fractions_become_ids() -> None:
    layout, notices = read_layout(case_folder("U07") / "float.json", **_engine("U07"))
    assert layout.slot_to_expert_LP.tolist() == [ROW]
    assert layout.slot_to_expert_LP.dtype == np.int32
    assert [notice.code for notice in notices] == ["FLOAT_IDS"]
    assert notices[0].detail.startswith("6 expert ids")


def test_u07_flat_list_is_refused() -> None:
    with pytest.raises(BadMapShape, match="flat list of 6 entries; write one list per decoder layer"):
        read_layout(case_folder("U07") / "flat.json", **_engine("U07"))


@pytest.mark.parametrize("bad", [0.5, "3", None, True, False, [3], {"id": 3}])
def test_what_is_no_whole_number_is_no_id(tmp_path: Path, bad: object) -> None:
    with pytest.raises(BadMapShape, match=r"layer 1, slot 3 of physical_to_logical_map holds .* is a whole number"):
        read_layout(sglang_file(tmp_path, [ROW, [0, 1, 2, bad, 0, 1]]), gpus=2, experts=4)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, token: str) -> None:
    path = tmp_path / "map.json"
    path.write_text(f'{{"physical_to_logical_map": [[0, 1, 2, 3, {token}, 1]]}}')
    with pytest.raises(BadJson, match=token):
        read_layout(path, gpus=2, experts=4)


@pytest.mark.parametrize("rows", [[], [[]], [[], []], None, {}, "[[0]]", 3, [ROW, []], [ROW, None], [ROW, 3]])
def test_what_is_no_table_is_refused(tmp_path: Path, rows: object) -> None:
    with pytest.raises(BadMapShape):
        read_layout(sglang_file(tmp_path, rows), gpus=2, experts=4)


def test_a_table_per_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadMapShape, match=r"layer 0, slot 0 .* holds a list of 3 entries"):
        read_layout(sglang_file(tmp_path, [[[0, 1, 2], [3, 0, 1]]]), gpus=2, experts=4)


@pytest.mark.parametrize("row", [ROW[:-1], [*ROW, 0]])
def test_ragged_rows_are_named(tmp_path: Path, row: list[int]) -> None:
    with pytest.raises(BadMapShape, match=f"layer 1 of .* has {len(row)} slots, layer 0 has 6"):
        read_layout(sglang_file(tmp_path, [ROW, row]), gpus=2, experts=4)
