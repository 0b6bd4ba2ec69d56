"""What a layout file does not say, plans as layouts, and files that are no layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from placement.errors import BadOption, LayoutMismatch, SlotCountMismatch
from profiler.errors import BadJson, InputNotFound, PlanHashMismatch, UnknownFormat
from profiler.formats import read_layout
from profiler.plan_file import render_plan
from tests.profiler.formats.map_files import ROW, sglang_file
from tests.sample_plans import make_plan, small_sample

# What the file does not say


def test_experts_are_inferred_only_when_unknown_and_with_a_notice(tmp_path: Path) -> None:
    layout, notices = read_layout(sglang_file(tmp_path, [ROW]), gpus=2)
    assert layout.experts == 4
    assert [notice.code for notice in notices] == ["EXPERTS_INFERRED"]
    assert "4 experts" in notices[0].detail


def test_the_gpus_must_be_given_where_the_file_does_not_say(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="for how many GPUs"):
        read_layout(sglang_file(tmp_path, [ROW]), gpus=None, experts=4)


def test_duplicates_on_a_gpu_are_kept_with_a_warning(tmp_path: Path) -> None:
    """SGLang's own EPLB makes them; they waste memory but answer right."""
    layout, notices = read_layout(sglang_file(tmp_path, [[0, 0, 1, 2, 3, 3]]), gpus=2, experts=4)
    assert layout.duplicated_slots() == 2
    assert [notice.code for notice in notices] == ["DUPLICATE_ON_DEVICE"]


# Plans, and files that are no layout


def test_a_plan_is_a_layout(tmp_path: Path) -> None:
    plan = make_plan(small_sample())
    path = tmp_path / "plan.json"
    path.write_text(render_plan(plan))
    for gpus in (None, 4):
        assert read_layout(path, gpus=gpus)[0] == plan.layout
    with pytest.raises(LayoutMismatch, match="a plan for 4 GPUs; expected 8"):
        read_layout(path, gpus=8)
    with pytest.raises(LayoutMismatch, match="a plan for 32 experts; expected 64"):
        read_layout(path, gpus=4, experts=64)
    with pytest.raises(LayoutMismatch, match="has 6 layers; expected 7"):
        read_layout(path, gpus=4, layers=7)
    with pytest.raises(SlotCountMismatch, match="expected 40, got 48"):
        read_layout(path, gpus=4, slots=40)


def test_a_plan_changed_by_hand_is_no_layout(tmp_path: Path) -> None:
    document = json.loads(render_plan(make_plan(small_sample())))
    document["layout_hash"] = "0" * 64
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises(PlanHashMismatch):
        read_layout(path, gpus=4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "holds nothing"),
        ("[[0, 1]]", "holds no object"),
        ("3", "holds no object"),
        ('{"logical_count": [[1, 2]]}', "recording to plan from"),
        ('{"format": "moeplan-trace"}', "holds format"),
    ],
)
def test_other_json_is_no_layout(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UnknownFormat, match=message):
        read_layout(path, gpus=2)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound):
        read_layout(tmp_path / "absent.json", gpus=2)
    (tmp_path / "map.json").write_text("physical_to_logical_map: [[0, 1]]")
    with pytest.raises(BadJson):
        read_layout(tmp_path / "map.json", gpus=2)
