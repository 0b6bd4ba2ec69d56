"""Drop-in mode: SGLang's EPLB rebalances with moeplan's layouts, and answers stay what they were."""

from __future__ import annotations

import numpy as np

from profiler.engine.contract import PluginHealth
from tests.engine.engine_server import REBALANCE_STEPS, EngineServer
from tests.engine.test_placement import push, random_map, read_placement, refused, tensors_on_wrong_experts
from tests.engine.traffic import EIGHT_PROMPTS, greedy_at_once


def test_the_engine_rebalances_with_our_layouts(balancing_engine: EngineServer) -> None:
    engine = balancing_engine
    before = read_placement(engine)
    reference = greedy_at_once(engine)
    after = before
    for _ in range(REBALANCE_STEPS):
        greedy_at_once(engine)
        after = read_placement(engine)
        if after.layout_hash != before.layout_hash:
            break
    assert after.layout_hash != before.layout_hash, "the engine has rebalanced"
    assert "moeplan: a layout in" in engine.log_file.read_text(errors="replace")
    assert "[EPLBManager] rebalance end" in engine.log_file.read_text(errors="replace")
    assert after.ranks_agree
    assert tensors_on_wrong_experts(before, after) == set()
    half = after.slots // after.ep_size
    for layer in range(after.layers):
        for rank in range(after.ep_size):
            held = after.map_LP[layer, rank * half : (rank + 1) * half]
            assert len(np.unique(held)) == half, "SGLang's own algorithm gives a GPU two replicas of one expert"
    assert greedy_at_once(engine).equal_outputs(reference) == len(EIGHT_PROMPTS)


def test_health_names_the_balancer_and_pushes_are_refused(balancing_engine: EngineServer) -> None:
    health = PluginHealth.from_json(balancing_engine.get("/moeplan/health").json())
    assert health.balancer == "moeplan"
    assert health.abilities["push"].reason.startswith("ENGINE_REBALANCES")
    placement = read_placement(balancing_engine, checksums=0)
    assert refused(push(balancing_engine, random_map(placement, seed=91)), status=400) == "ENGINE_REBALANCES"
