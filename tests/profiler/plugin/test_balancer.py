"""The drop-in balancer: what it plans from SGLang's counts, and that it steps aside where it cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from profiler.engine.map_rules import check_map
from profiler.plugin import balancer
from profiler.plugin.balancer import BALANCER_VARIABLE, around_init_by_eplb, balancer_of, plan_layout
from profiler.plugin.rank_view import every_slot, keep_host_list_apart

LAYERS, EXPERTS, GPUS, SLOTS = 2, 8, 2, 10
RUNNING = np.tile(np.arange(SLOTS) % EXPERTS, (LAYERS, 1)).astype(np.int32)


def counts(*, steps: int, hot: int, seed: int = 0) -> np.ndarray:
    counts_WLE = np.random.default_rng(seed).integers(1, 20, size=(steps, LAYERS, EXPERTS))
    counts_WLE[:, :, hot] += 200
    return counts_WLE


def test_a_plan_is_a_layout_for_the_engine_and_spreads_what_is_hot() -> None:
    map_LP = plan_layout(counts(steps=20, hot=3), RUNNING, nodes=1, gpus=GPUS)
    check_map(map_LP, layers=LAYERS, slots=SLOTS, experts=EXPERTS)
    for row_P in map_LP:
        assert (row_P.reshape(GPUS, -1) == 3).sum(axis=1).tolist() == [1, 1]


def test_idle_steps_and_idle_engines_change_nothing() -> None:
    busy = counts(steps=3, hot=1)
    with_idle = np.concatenate([np.zeros((5, LAYERS, EXPERTS), dtype=np.int64), busy])
    expected = plan_layout(busy, RUNNING, nodes=1, gpus=GPUS)
    np.testing.assert_array_equal(plan_layout(with_idle, RUNNING, nodes=1, gpus=GPUS), expected)
    np.testing.assert_array_equal(plan_layout(0 * busy, RUNNING, nodes=1, gpus=GPUS), RUNNING)


def test_a_layout_suits_stretches_that_differ() -> None:
    """In turn one of two experts is hot: added up, both look the same, and one GPU could hold both."""
    halves = [counts(steps=8, hot=hot, seed=hot) for hot in (2, 6)]
    map_LP = plan_layout(np.concatenate(halves), RUNNING, nodes=1, gpus=GPUS)
    for row_P in map_LP.reshape(LAYERS, GPUS, -1):
        assert {2, 6} <= set(row_P[0].tolist())
        assert {2, 6} <= set(row_P[1].tolist())


@pytest.mark.parametrize(
    ("enabled", "asked", "expected"),
    [(False, "1", "none"), (True, "1", "moeplan"), (True, "0", "sglang"), (False, "0", "none")],
)
def test_who_balances(monkeypatch: pytest.MonkeyPatch, enabled: bool, asked: str, expected: str) -> None:
    monkeypatch.setenv(BALANCER_VARIABLE, asked)
    assert balancer_of(SimpleNamespace(enable_eplb=enabled)) == expected


def sglangs_own(model_config: str, logical_count: Any, *, use_flat_topology: bool = False) -> str:
    return f"sglang's own for {model_config}"


def test_sglang_balances_where_no_layout_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "location_metadata", lambda: SimpleNamespace())
    monkeypatch.setattr(balancer, "_of_rank_0", lambda make: None)
    assert around_init_by_eplb(sglangs_own, "model", None) == "sglang's own for model"


def test_sglang_balances_at_start_and_while_ranks_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "_of_rank_0", lambda make: pytest.fail("nothing may be planned"))
    monkeypatch.setattr(balancer, "location_metadata", lambda: None)
    assert around_init_by_eplb(sglangs_own, "model", None) == "sglang's own for model"
    monkeypatch.setattr(balancer, "location_metadata", lambda: SimpleNamespace())
    assert around_init_by_eplb(sglangs_own, "model", None, use_flat_topology=True) == "sglang's own for model"


def test_every_slot_of_an_expert_is_listed_in_order() -> None:
    slots_LEP = every_slot(np.array([[1, 0, 1, 1], [0, 0, 1, 2]]), experts=3)
    assert slots_LEP.tolist() == [
        [[1, -1, -1, -1], [0, 2, 3, -1], [-1, -1, -1, -1]],
        [[0, 1, -1, -1], [2, -1, -1, -1], [3, -1, -1, -1]],
    ]


def test_a_host_list_that_is_the_one_of_dispatch_is_copied() -> None:
    shared = torch.tensor([[[0, 3]]])
    metadata = SimpleNamespace(logical_to_all_physical_map=shared, logical_to_all_physical_map_cpu=shared)
    keep_host_list_apart(metadata)
    metadata.logical_to_all_physical_map_cpu[0, 0, 0] = 7
    assert metadata.logical_to_all_physical_map.tolist() == [[[0, 3]]]


def test_a_host_list_of_its_own_stays() -> None:
    host = torch.tensor([[[0, 3]]])
    metadata = SimpleNamespace(logical_to_all_physical_map=host.clone(), logical_to_all_physical_map_cpu=host)
    keep_host_list_apart(metadata)
    assert metadata.logical_to_all_physical_map_cpu is host
