"""A push on one rank with an imagined engine: refused as a whole, or applied layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from profiler.engine.json_fields import ContractViolation, Fields
from profiler.engine.map_rules import layout_hash
from profiler.plugin import apply
from profiler.plugin.apply import PlacementApplier
from profiler.plugin.orders import OrderRefused
from tests.profiler.plugin.views import plain

OLD = [[0, 1, 2, 0], [0, 1, 2, 1], [0, 1, 2, 2]]
NEW = [[2, 1, 0, 2], [0, 1, 2, 1], [1, 0, 2, 0]]


@dataclass
class Metadata:
    physical_to_logical_map: torch.Tensor
    num_layers: int = 3
    num_physical_experts: int = 4
    num_logical_experts: int = 3

    def update(self, other: Metadata, update_layer_ids: list[int]) -> None:
        self.physical_to_logical_map[update_layer_ids] = other.physical_to_logical_map[update_layer_ids]


@dataclass
class Updater:
    running: Metadata
    fails_at: int | None = None
    asked: list[list[int]] = field(default_factory=list)

    def update(
        self, weights: Any, new: Metadata, *, update_layer_ids: list[int], nnodes: int, rank: int
    ) -> dict[int, Any]:
        self.asked.append(update_layer_ids)
        if self.fails_at in update_layer_ids:
            raise RuntimeError("broken link")
        self.running.update(new, update_layer_ids)
        return {}


@dataclass
class Model:
    routed_experts_weights_of_layer: dict[int, list[Any]]


@dataclass
class Runner:
    expert_location_updater: Updater
    model: Model = field(default_factory=lambda: Model({0: [], 1: [], 2: []}))
    model_config: Any = None


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    running = Metadata(torch.tensor(OLD))
    monkeypatch.setattr(apply, "location_metadata", lambda: running)
    monkeypatch.setattr(apply, "wait_for_device", lambda: None)
    monkeypatch.setattr(apply, "metadata_of_map", lambda _args, _config, map_LP, ep_rank: Metadata(map_LP, len(map_LP)))
    return Runner(Updater(running))


def order(**fields: Any) -> Fields:
    return Fields({"push_id": "p", "map": NEW, **fields}, "order")


def open_push(applier: PlacementApplier, runner: Runner, **fields: Any) -> dict[str, Any]:
    planned, push = applier.plan(order(**fields), model_runner=runner, server_args=None, view=plain(0))
    applier.open(push)
    return planned


def hash_of(rows: list[list[int]]) -> str:
    return layout_hash(np.array(rows, dtype=np.int32))


def test_only_layers_that_change_are_moved(runner: Runner) -> None:
    applier = PlacementApplier()
    planned = open_push(applier, runner, layers_per_chunk=1)
    assert [chunk["layers"] for chunk in planned["chunks"]] == [[0], [2]]
    assert [chunk["changed_slots"] for chunk in planned["chunks"]] == [3, 3]
    for index in range(2):
        applier.apply(applier.chunk("p", index), model_runner=runner, server_args=None, view=plain(0))
    end = applier.close("p")
    assert end == {"applied_layers": [0, 2], "layout_hash": hash_of(NEW), "generation": 1}
    assert runner.expert_location_updater.asked == [[0], [2]]
    assert not applier.in_progress


def test_failure_leaves_whole_layers(runner: Runner) -> None:
    runner.expert_location_updater.fails_at = 2
    applier = PlacementApplier()
    open_push(applier, runner)
    with pytest.raises(OrderRefused, match="layer 2 failed: RuntimeError: broken link") as caught:
        applier.apply(applier.chunk("p", 0), model_runner=runner, server_args=None, view=plain(0))
    assert caught.value.status == 500
    end = applier.close("p")
    assert end["applied_layers"] == [0]
    assert end["layout_hash"] == hash_of([NEW[0], OLD[1], OLD[2]])
    assert end["generation"] == 1


def test_failure_at_the_first_layer_is_no_applied_push(runner: Runner) -> None:
    runner.expert_location_updater.fails_at = 0
    applier = PlacementApplier()
    open_push(applier, runner)
    with pytest.raises(OrderRefused):
        applier.apply(applier.chunk("p", 0), model_runner=runner, server_args=None, view=plain(0))
    assert applier.close("p") == {"applied_layers": [], "layout_hash": hash_of(OLD), "generation": 0}


def test_open_push_refuses_another_until_it_is_abandoned(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    applier = PlacementApplier()
    open_push(applier, runner)
    with pytest.raises(OrderRefused) as caught:
        open_push(applier, runner, push_id="q")
    assert (caught.value.code, caught.value.status) == ("PUSH_IN_PROGRESS", 409)
    later = apply.time.monotonic() + apply.ABANDONED_AFTER_S + 1
    monkeypatch.setattr(apply.time, "monotonic", lambda: later)
    assert not applier.in_progress
    open_push(applier, runner, push_id="q")
    with pytest.raises(OrderRefused, match="not open any more") as lost:
        applier.chunk("p", 0)
    assert lost.value.code == "PUSH_LOST"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"expected_layout_hash": "0" * 64}, "LAYOUT_HASH_MISMATCH"),
        ({"map": [[0, 1, 2, 3], *NEW[1:]]}, "EXPERT_ID_RANGE"),
        ({"map": [[0, 1, 1, 0], *NEW[1:]]}, "EXPERT_MISSING"),
        ({"map": NEW[:2]}, "LAYOUT_MISMATCH"),
        ({"map": [row[:3] for row in NEW]}, "SLOT_COUNT_MISMATCH"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_moves(runner: Runner, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(ContractViolation) as caught:
        open_push(PlacementApplier(), runner, **fields)
    assert caught.value.code == code
    assert runner.expert_location_updater.asked == []


def test_static_tables_are_made_for_the_whole_result_and_set_in_all_layers(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    updated: list[list[int]] = []

    def metadata_of_map(_args: Any, _config: Any, map_LP: torch.Tensor, ep_rank: int) -> Metadata:
        made.append(len(map_LP))
        return Metadata(map_LP, len(map_LP))

    update = Metadata.update
    monkeypatch.setattr(apply, "metadata_of_map", metadata_of_map)
    monkeypatch.setattr(
        Metadata,
        "update",
        lambda self, new, update_layer_ids: (updated.append(update_layer_ids), update(self, new, update_layer_ids)),
    )
    static = replace(plain(0), dispatch="static")
    applier = PlacementApplier()
    _planned, opened = applier.plan(order(), model_runner=runner, server_args=None, view=static)
    applier.open(opened)
    applier.apply(applier.chunk("p", 0), model_runner=runner, server_args=None, view=static)
    assert applier.close("p")["layout_hash"] == hash_of(NEW)
    assert made == [3]
    assert updated[-1] == [0, 1, 2]


def test_expected_layout_is_accepted_and_a_layer_can_be_chosen(runner: Runner) -> None:
    planned = open_push(PlacementApplier(), runner, expected_layout_hash=hash_of(OLD), layers=[1, 2])
    assert [chunk["layers"] for chunk in planned["chunks"]] == [[2]]
