"""``PLAN.json``: what is written is read back, anything else is refused with the place where it went wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.dispatch import Dispatch
from placement.errors import BadPlan, CodedError, ExpertMissing
from placement.notice import Notice
from placement.plan import Plan
from placement.problem import LocalScope, Objective
from placement.topology import Topology
from profiler.errors import OutputNotWritable, PlanHashMismatch, PlanVersionUnknown
from profiler.plan_file import plan_from_document, read_plan, render_plan, write_plan
from tests.sample_plans import Sample, make_plan, skewed_demand, small_sample

SAMPLES = {
    "locality": small_sample(),
    "balance, nothing local": replace(small_sample(), objective=Objective.BALANCE, dispatch=Dispatch.EVEN),
    "nodes": replace(small_sample(), topology=Topology(4, 2), local_scope=LocalScope.NODE),
    "nothing known of the model": replace(small_sample(), model_name="", top_k=None, expert_bytes=None),
    "holdout and warnings": replace(
        small_sample(), holdout=skewed_demand(seed=5), notices=(Notice("PARTIAL", "only <b>half</b> & more"),)
    ),
    "one GPU": Sample(skewed_demand(experts=8), Topology(1), slots_per_gpu=8),
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(render_plan(make_plan(small_sample())))
    return parsed


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    plan = make_plan(SAMPLES[name])
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    again = read_plan(path)
    assert again == plan
    assert again.layout == plan.layout
    assert again.notices == plan.notices
    assert again.metrics == plan.metrics
    assert render_plan(again) == path.read_text()


def test_files_of_equal_plans_are_equal_byte_for_byte() -> None:
    first, second = make_plan(small_sample()), replace(make_plan(small_sample()), solve_seconds=77.0)
    assert render_plan(first) == render_plan(second)


def test_one_layer_of_the_map_is_one_line(document: dict[str, Any]) -> None:
    lines = render_plan(make_plan(small_sample())).splitlines()
    for row in document["physical_to_logical_map"]:
        assert json.dumps(row, separators=(",", ":")) in {line.rstrip(",") for line in lines}


def test_a_plan_that_cannot_be_written_leaves_what_was_there(tmp_path: Path, plan_like: Plan) -> None:
    with pytest.raises(OutputNotWritable):
        write_plan(plan_like, tmp_path / "absent" / "plan.json")
    with pytest.raises(OutputNotWritable):
        write_plan(plan_like, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def plan_like() -> Plan:
    return make_plan(small_sample())


def _at(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value

    return change


WRONG_FIELDS = {
    "$.metrics.windows[0].imbalance: ": _at("metrics", "windows", 0, "imbalance", value="high"),
    "$.metrics.local_gpu: ": _at("metrics", "local_gpu", value=True),
    "$.metrics.surprise: ": _at("metrics", "surprise", value=1),
    "$.surprise: ": _at("surprise", value=1),
    "$.options.objective: ": _at("options", "objective", value="speed"),
    "$.options.seed: ": _at("options", "seed", value=0.5),
    "$.status: ": _at("status", value="fine"),
    "$.heat[1][2]: ": _at("heat", 1, 2, value=-3),
    "$.heat[0][0]: ": _at("heat", 0, 0, value=2**70),
    "$.heat[1] has 1 ": _at("heat", 1, value=[3]),
    "$.load_before[1] has 1 ": _at("load_before", 1, value=[3]),
    "$.physical_to_logical_map[0][0]: ": _at("physical_to_logical_map", 0, 0, value=1.0),
    "$.physical_to_logical_map[2][1]: ": _at("physical_to_logical_map", 2, 1, value=-1),
    "$.physical_to_logical_map[2] has 1 ": _at("physical_to_logical_map", 2, value=[0]),
    "$.moves.moved_slots: ": _at("moves", "moved_slots", value=True),
    "$.moves.before: ": _at("moves", "before", value="yesterday"),
    "$.topology.gpus: ": _at("topology", "gpus", value=None),
    "$.warnings[0].code: ": _at("warnings", value=[{"code": 1, "detail": "x"}]),
    "$.gap is ": _at("gap", value=0.5),
    "$.sources is ": _at("sources", value="measured"),
    "$.bound.proven is ": _at("bound", "proven", value=False),
    "$.format_version: ": _at("format_version", value="1"),
    "it has no": _at("format", value="other"),
}


@pytest.mark.parametrize("where", WRONG_FIELDS)
def test_a_wrong_field_is_named_by_its_path(document: dict[str, Any], where: str) -> None:
    changed = copy.deepcopy(document)
    WRONG_FIELDS[where](changed)
    with pytest.raises(BadPlan) as caught:
        plan_from_document(changed, name="plan.json")
    assert where in caught.value.detail
    assert caught.value.detail.startswith("plan.json")


def _paths(value: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return []
    here = [(*prefix, key) for key in value]
    return here + [path for key in value for path in _paths(value[key], (*prefix, key))]


DEFAULTED = (
    "local_target",
    "hedge",
    "holdout_share",
    "capacity_factor",
    "time_limit_s",
    "max_moved_slots",
    "sample_tokens",
    "max_overflow",
    "hardware",
)
"""Options that files written before them lack."""


OF_TOKENS = ("gpus_per_token", "nodes_per_token", "active_experts", "token_basis", "step_overflow")
"""Figures that need a token trace."""


def test_every_field_is_needed(document: dict[str, Any]) -> None:
    """Only what has a default, so that files written before it existed stay readable, and a baseline may be absent."""
    options = {("options", name) for name in DEFAULTED}
    for path in _paths(document):
        changed = copy.deepcopy(document)
        inner = changed
        for part in path[:-1]:
            inner = inner[part]
        del inner[path[-1]]
        of_tokens = path[-1] in OF_TOKENS
        absent = path[-1] in ("holdout", "moe_layer", "moe_layer_s")
        if path in options or of_tokens or absent or (path[0] == "baselines" and len(path) == 2):
            plan_from_document(changed, name="plan.json")
            continue
        with pytest.raises(BadPlan) as caught:
            plan_from_document(changed, name="plan.json")
        assert path[-1] in caught.value.detail


def test_a_newer_version_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(PlanVersionUnknown, match=r"plan format 2 .* reads up to 1"):
        plan_from_document({**document, "format_version": 2, "new_key": 1}, name="plan.json")
    assert PlanVersionUnknown.code == "PLAN_VERSION_UNKNOWN"


@pytest.mark.parametrize("document", [[], None, {}, {"physical_to_logical_map": [[0]]}, "plan"])
def test_other_json_is_no_plan(document: Any) -> None:
    with pytest.raises(BadPlan, match="no moeplan plan"):
        plan_from_document(document, name="plan.json")


def test_a_map_changed_by_hand_is_refused(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    row = changed["physical_to_logical_map"][1]
    other = next(slot for slot, expert in enumerate(row) if expert != row[0])
    row[0], row[other] = row[other], row[0]
    with pytest.raises(PlanHashMismatch, match=r"changed after planning"):
        plan_from_document(changed, name="plan.json")
    assert PlanHashMismatch.code == "PLAN_HASH_MISMATCH"


def test_a_map_without_an_expert_is_refused_as_a_layout(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    row = changed["physical_to_logical_map"][3]
    changed["physical_to_logical_map"][3] = [row[0]] * len(row)
    with pytest.raises(ExpertMissing, match="layer 3"):
        plan_from_document(changed, name="plan.json")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_edit_gets_past_with_another_error_than_a_coded_one(document: dict[str, Any], data: st.DataObject) -> None:
    """Fuzz: one value anywhere is replaced; the result is the same plan, another valid one, or one coded sentence."""
    changed = copy.deepcopy(document)
    inner: Any = changed
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(inner[key], (dict, list)) and inner[key] and data.draw(st.integers(0, 3))):
            break
        inner = inner[key]
    inner[key] = data.draw(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
        | st.just([])
        | st.just({})
        | st.just([[0]])
    )
    try:
        plan = plan_from_document(changed, name="plan.json")
    except CodedError:
        return
    assert plan_from_document(json.loads(render_plan(plan)), name="again") == plan


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("local_target", 1.5),
        ("max_imbalance", 0.5),
        ("max_imbalance_used", 1e300),
        ("holdout_share", -0.1),
        ("capacity_factor", 0.0),
        ("capacity_factor", -1.0),
        ("seed", -1),
        ("time_limit_s", 0.0),
        ("max_moved_slots", -1),
        ("sample_tokens", 0),
        ("max_overflow", 1.1),
    ],
)
def test_options_that_no_plan_is_made_with_are_refused(document: dict[str, Any], name: str, value: float) -> None:
    changed = copy.deepcopy(document)
    changed["options"][name] = value
    with pytest.raises(BadPlan, match=rf"options\.{name} is"):
        plan_from_document(changed, name="plan.json")


def test_layouts_judged_at_other_capacities_are_refused(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    changed["baselines"]["eplb"]["capacity"].pop()
    with pytest.raises(BadPlan, match="eplb was judged at the capacities"):
        plan_from_document(changed, name="plan.json")
