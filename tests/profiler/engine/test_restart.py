"""The flags of a rolling restart with a layout's file."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placement.dispatch import Dispatch
from placement.errors import LayoutMismatch
from placement.layout import Layout
from profiler.engine.restart import Restart, restart_with
from profiler.engine.server_facts import server_facts
from profiler.errors import ModelWithoutExpertLocation
from tests.case_files import case
from tests.profiler.engine.messages import MAP_LP
from tests.profiler.engine.server_infos import server_info

LAYOUT = Layout(MAP_LP, gpus=2, experts=3)
FILE = Path("/srv/my layouts/layout.json")


def restart(*, dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC, nodes: int = 1, **changes: Any) -> Restart:
    facts = server_facts(server_info(**changes))
    return restart_with(LAYOUT, FILE, dispatch=dispatch, nodes=nodes, facts=facts)


def changed(planned: Restart) -> list[str]:
    return [flag.name for flag in planned.flags if flag.changes]


def test_without_an_engine_every_flag_is_to_be_set() -> None:
    planned = restart_with(LAYOUT, FILE, dispatch=Dispatch.NEAREST_DYNAMIC, nodes=1)
    assert shlex.split(planned.command_line) == [
        "--ep-size", "2", "--ep-num-redundant-experts", "1", "--ep-dispatch-algorithm", "dynamic",
        "--init-expert-location", str(FILE),
    ]  # fmt: skip
    assert len(changed(planned)) == 4


def test_an_engine_of_the_right_shape_needs_the_file_only() -> None:
    assert changed(restart()) == ["--init-expert-location"]
    assert changed(restart(init_expert_location=str(FILE))) == []


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"ep_num_redundant_experts": 0}, "--ep-num-redundant-experts"),
        ({"ep_dispatch_algorithm": None}, "--ep-dispatch-algorithm"),
        ({"ep_dispatch_algorithm": "static"}, "--ep-dispatch-algorithm"),
        ({"enable_eplb": True}, "--enable-eplb"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], flag: str) -> None:
    assert set(changed(restart(**changes))) == {"--init-expert-location", flag}


def test_a_balancer_that_would_overwrite_the_layout_is_removed() -> None:
    planned = restart(enable_eplb=True)
    assert "--enable-eplb" not in planned.command_line
    assert "without --enable-eplb" in " ".join(planned.steps)


@pytest.mark.parametrize(
    ("dispatch", "flag"),
    [(Dispatch.NEAREST_DYNAMIC, "dynamic"), (Dispatch.NEAREST_STATIC, "static"), (Dispatch.EVEN, "dynamic")],
)
def test_the_dispatch_is_the_one_that_was_planned_for(dispatch: Dispatch, flag: str) -> None:
    assert f"--ep-dispatch-algorithm {flag}" in restart(dispatch=dispatch).command_line


def test_another_number_of_gpus_is_refused() -> None:
    with pytest.raises(LayoutMismatch, match="plan for --gpus 4"):
        restart(ep_size=4)


def test_a_model_without_expert_location_is_told_that_a_file_is_all() -> None:
    with pytest.raises(ModelWithoutExpertLocation, match="MixtralForCausalLM"):
        restart_with(LAYOUT, FILE, dispatch=Dispatch.EVEN, nodes=1, architectures=("MixtralForCausalLM",))


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, []),
        ({"nnodes": 2}, ["NODES_DIFFER"]),
        ({"moe_a2a_backend": "none"}, ["NO_ALL_TO_ALL"]),
        ({"init_expert_location": str(FILE)}, ["LAYOUT_FILE_IN_USE"]),
    ],
)
def test_what_the_plan_did_not_expect_is_pointed_out(changes: dict[str, Any], codes: list[str]) -> None:
    assert [notice.code for notice in restart(**changes).notices] == codes


def test_the_old_file_is_kept_to_go_back_to() -> None:
    told = restart().steps
    assert "keep the one that runs now" in told[0]
    assert "start it as it was, with:" in told[-1]


@pytest.mark.parametrize(
    ("changes", "way_back"),
    [
        ({"init_expert_location": "/srv/old.json"}, "--init-expert-location /srv/old.json"),
        ({"init_expert_location": "/srv/an old one.json"}, "--init-expert-location '/srv/an old one.json'"),
        ({"ep_num_redundant_experts": 0}, "--ep-num-redundant-experts 0"),
        ({"ep_dispatch_algorithm": None}, "without --ep-dispatch-algorithm"),
        ({"enable_eplb": True}, "--enable-eplb"),
    ],
)
def test_an_engine_that_does_not_start_is_started_as_it_was(changes: dict[str, Any], way_back: str) -> None:
    last = restart(**changes).steps[-1]
    assert case("U27")["expect"]["error_code"] in last
    assert way_back in last


def test_where_no_engine_was_asked_the_way_back_is_the_file_that_was_kept() -> None:
    planned = restart_with(LAYOUT, FILE, dispatch=Dispatch.NEAREST_DYNAMIC, nodes=1)
    assert "with the file and the flags that it ran with before" in planned.steps[-1]
    kept = replace(planned, kept=Path("/srv/layout-123.json"))
    assert "--init-expert-location /srv/layout-123.json and the other flags of before" in kept.steps[-1]
    assert "/srv/layout-123.json" in kept.steps[0]
