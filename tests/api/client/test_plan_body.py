"""A plan is asked for with the same options on the command line and over REST."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from api.cli.options import ReadFlags
from api.cli.plan_options import PlanFlags
from api.client.plans import plan_body
from api.errors import BadRequest
from api.http.schemas.plans import PlanIn
from api.plan_request import PlanRequest
from api.service.plan_options import read_options_of, request_of, require_valid
from placement.dispatch import Dispatch
from placement.errors import BadHardwareProfile, BadModelConfig, BadOption
from placement.problem import LocalScope, Objective
from profiler.hardware import read_hardware
from profiler.hardware.profile_file import render_hardware
from profiler.model_file import read_model_config

OTHERWISE = {
    "topology_file": "costs",  # what the file holds
    "workers": None,  # who searches is the service's own business
}
"""Options of the command line that have another name over REST, or none."""

OVER_REST_ALONE = {"trace_ids", "test_trace_ids", "engine_id", "name", "model", "costs"}
"""What the command line names as files, and what only a service has."""


def test_every_option_of_the_command_line_is_one_over_rest() -> None:
    """The two lists, side by side: an option that is added to one and not to the other fails here."""
    on_the_command_line = {field.name for field in fields(PlanFlags)}
    over_rest = set(PlanIn.model_fields)
    expected = {OTHERWISE.get(name, name) for name in on_the_command_line} - {None}
    assert expected - over_rest == set()
    assert over_rest - expected - OVER_REST_ALONE == set()
    assert {field.name for field in fields(ReadFlags)} - over_rest == {
        "experts",
        "ranks",
        "allow_partial",
        "map_history",
    }


EVERYTHING: dict[str, Any] = {
    "gpus": 8, "nodes": 2, "slots_per_gpu": 5, "local_target": 0.7, "local_scope": LocalScope.NODE,
    "objective": Objective.STEP_TIME, "max_imbalance": 1.2, "hedge": 0.01, "dispatch": Dispatch.EVEN,
    "window_by": "steps:5", "sources": "uniform", "phase": "decode", "holdout": 0.3, "capacity_factor": 1.5,
    "sample_tokens": 100, "max_overflow": 0.4, "expert_groups": 2, "expert_bytes": 1000,
    "draft_experts": 8, "draft_redundant": 0, "live_gpus": "0,1,2", "hardware": "h200", "step_phase": "prefill",
    "step_tokens": 64, "time_limit_s": 5.0, "seed": 3, "threads": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "other", [{}, {"objective": Objective.BALANCE, "max_moved_slots": 5, "pareto": True, "hardware": None},
              {"objective": Objective.TRAFFIC, "max_moved_bytes": 5000, "pareto": True, "hardware": None},
              {"slots_per_gpu": None, "fit": True}, {"slots_per_gpu": None, "redundant": 8}],
)  # fmt: skip
def test_what_is_sent_is_what_was_asked(other: dict[str, Any]) -> None:
    values = {**EVERYTHING, **other}
    if values["hardware"] is None:
        values |= {"step_phase": None, "step_tokens": None}
    asked = PlanRequest(**values)
    body = json.loads(json.dumps(plan_body(asked, model=Path("deepseek-v2-lite"))))
    kept = PlanIn.model_validate({"trace_ids": ["trc_x"], **body}).options()
    made = request_of(kept)
    for field in fields(PlanRequest):
        expected = getattr(asked, field.name)
        if field.name == "hardware" and expected is not None:
            expected = read_hardware(expected)
        assert getattr(made, field.name) == expected, field.name
    shape = read_options_of(kept).model
    assert shape is not None
    assert shape.name


def test_every_option_but_files_is_tried_above() -> None:
    tried = set(EVERYTHING) | {"max_moved_slots", "max_moved_bytes", "pareto", "fit", "redundant"}
    assert {field.name for field in fields(PlanRequest)} - tried == {"topology_file", "current", "test", "workers"}


def test_what_is_usual_is_left_to_the_engine() -> None:
    assert plan_body(PlanRequest(gpus=8), model=None) == {"gpus": 8}


def test_files_are_sent_by_what_they_hold(tmp_path: Path) -> None:
    costs, current = tmp_path / "costs.json", tmp_path / "current.json"
    costs.write_text("[[0, 1], [1, 0]]")
    current.write_text('{"physical_to_logical_map": [[0, 1, 2, 3]]}')
    profile = tmp_path / "mine.toml"
    profile.write_text(render_hardware(read_hardware("h200")))
    asked = PlanRequest(gpus=2, topology_file=costs, current=current, hardware=str(profile))
    body = plan_body(asked, model=None)
    assert body["costs"] == [[0, 1], [1, 0]]
    assert body["current"] == {"physical_to_logical_map": [[0, 1, 2, 3]]}
    assert request_of(json.loads(json.dumps({"gpus": 2, "hardware": body["hardware"]}))).hardware == read_hardware(
        "h200"
    )
    assert str(tmp_path) not in json.dumps(body)


def test_workers_of_the_service_are_its_own() -> None:
    with pytest.raises(BadOption, match="--workers"):
        plan_body(PlanRequest(gpus=8, workers=2), model=None)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ".", "", "h200.toml", "deepseek-v3.json"])
def test_no_text_of_a_request_is_looked_up_as_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, file in (("hardware", "h200.toml"), ("model", "deepseek-v3.json")):
        (tmp_path / file).write_text("{}")
        with pytest.raises(BadRequest, match=f"no {kind}"):
            require_valid({"gpus": 8, "model": "deepseek-v3", kind: name})


def test_what_is_sent_instead_of_a_name_is_checked() -> None:
    with pytest.raises(BadHardwareProfile):
        require_valid({"gpus": 8, "model": "deepseek-v3", "hardware": {"format": "moeplan-hardware"}})
    with pytest.raises(BadModelConfig):
        require_valid({"gpus": 8, "model": {"hidden_size": 5}})
    with pytest.raises(BadOption, match="--hardware needs --model"):
        require_valid({"gpus": 8, "hardware": "h200"})
    require_valid({"gpus": 8, "hardware": "h200", "model": read_model_config("deepseek-v3")})
