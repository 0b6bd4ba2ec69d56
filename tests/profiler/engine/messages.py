"""One valid message of every kind."""

from __future__ import annotations

import numpy as np

from profiler.engine.contract import ABILITIES, Ability, Placement, PluginHealth, Refusal
from profiler.engine.contract_demand import DemandAnswer, DemandOptions, DemandState, DemandWindow, PhaseCounts
from profiler.engine.contract_measured import Measured
from profiler.engine.contract_push import ChunkReport, PushAnswer, PushRequest
from profiler.engine.map_rules import layout_hash

MAP_LP = np.array([[0, 1, 2, 0], [2, 1, 0, 1]], dtype=np.int32)


def placement(**changes: object) -> Placement:
    """Return an engine of 2 layers, 3 experts on 2 x 2 slots."""
    fields = {
        "engine": "sglang",
        "simulated": False,
        "engine_version": "0.5.23",
        "model": "some/model",
        "layers": 2,
        "moe_layers": (0, 1),
        "experts": 3,
        "slots": 4,
        "top_k": 2,
        "ep_size": 2,
        "nodes": 1,
        "dispatch": "dynamic",
        "a2a_backend": "deepep",
        "quantization": None,
        "phase": "both",
        "expert_bytes": 1000,
        "free_bytes": None,
        "map_LP": MAP_LP,
        "layout_hash": layout_hash(MAP_LP),
        "rank_hashes": (layout_hash(MAP_LP),) * 2,
        "generation": 3,
        "push_in_progress": False,
        "checksums": {"w": (("a", "b", "c", "a"), ("f", "e", "d", "e"))},
    }
    return Placement(**{**fields, **changes})


def health(**changes: object) -> PluginHealth:
    fields = {
        "contract": 1,
        "engine": "sglang",
        "simulated": False,
        "moeplan_version": "0.1.0",
        "engine_version": "0.5.23",
        "ranks": (0, 1),
        "ranks_expected": 2,
        "abilities": {name: Ability(works=True) for name in ABILITIES},
    }
    return PluginHealth(**{**fields, **changes})


def push_answer() -> PushAnswer:
    chunk = ChunkReport((0,), "applied", 0.5, 2, 2000, 1, 1000)
    skipped = ChunkReport((1,), "failed", None, 2, 2000, 1, 1000)
    digest = layout_hash(MAP_LP)
    return PushAnswer("sglang", False, "partial", digest, digest, 4, (chunk, skipped), (0,), (1,), "rank 1 is gone")


def demand_answer() -> DemandAnswer:
    counts_LSE = np.arange(12, dtype=np.int64).reshape(2, 2, 3)
    window = DemandWindow(5, 100, 10, 1.5, 3, 4, (PhaseCounts("prefill", 10, 33, counts_LSE),))
    return DemandAnswer("sglang", False, True, "abc", 20, 2, 2, 3, (window,), 0, 1)


def measured() -> Measured:
    counts_LSG = np.arange(8, dtype=np.int64).reshape(2, 2, 2)
    return Measured(
        "moeplan-replay", True, layout_hash(MAP_LP), 1, False, 7, 14, counts_LSG, 0.5, 1.0, "", 1.1, 0.2, 0.0
    )


MESSAGES = {
    "health": health(),
    "placement": placement(),
    "push": PushRequest(MAP_LP, layers=(0,), expected_layout_hash="x", layers_per_chunk=1, pause_s=0.5, dry_run=True),
    "push answer": push_answer(),
    "demand options": DemandOptions(window_seconds=2.5, max_steps=10, ring_windows=4),
    "demand state": DemandState("sglang", False, True, "abc", 20),
    "demand": demand_answer(),
    "measured": measured(),
    "refusal": Refusal("SOME_CODE", "some detail"),
}
"""By name; every class has ``to_json`` and ``from_json``."""
