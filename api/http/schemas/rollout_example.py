"""A rollout as the description of the service shows one: measured, kept, and not quite what was predicted."""

from __future__ import annotations

from typing import Any

_FIGURES = {
    "local_gpu": 0.6134,
    "local_node": 0.6134,
    "local_reason": None,
    "imbalance": 1.0712,
    "balancedness": 0.9335,
    "sglang_balancedness": 0.9341,
    "worst_window_imbalance": 1.0934,
    "sources": "measured",
    "windows": 14,
    "tokens": 18_350_080,
    "dispatch": "nearest-dynamic",
}

ROLLOUT_EXAMPLE: dict[str, Any] = {
    "id": "rol_01k3x9v4e7q8w2m5n6p7r8s9t0",
    "engine_id": "eng_01k3x9v4e7q8w2m5n6p7r8s9t0",
    "plan_id": "pln_01k3x9v4e7q8w2m5n6p7r8s9t0",
    "takes_back_id": None,
    "state": "applied",
    "sentence": "The engine runs the layout, on every rank, with the right weights.",
    "from_hash": "9f2c5d1e" * 8,
    "to_hash": "47b1a0c3" * 8,
    "runs_hash": "47b1a0c3" * 8,
    "pace": {"layers_per_chunk": 8, "pause_s": 0.5},
    "result": {"status": "applied", "changed_slots": 4102, "moved_slots": 3920, "moved_bytes": 172_619_923_456},
    "taken_back": None,
    "measure_seconds": 30.0,
    "roll_back_margin": 0.05,
    "predicted": {**_FIGURES, "local_gpu": 0.6302, "imbalance": 1.0421, "basis": "held-out windows"},
    "measured": {**_FIGURES, "seconds": 30.0, "steps": 1400, "counted": None},
    "measured_before": {**_FIGURES, "local_gpu": 0.2488, "imbalance": 1.3157},
    "verdict": {
        "code": "KEPT",
        "sentence": "Measured: share at home is 0.6134 (predicted: 0.6302); the layout before would have 0.2488 on the "
        "same traffic. It is kept.",
        "metric": "local_gpu",
        "measured": 0.6134,
        "before": 0.2488,
        "predicted": 0.6302,
        "worse_by": -1.4654,
        "worse_than_predicted_by": 0.0267,
        "margin": 0.05,
    },
    "warnings": [],
    "error": None,
    "reason": "weekly rebalancing",
    "job_id": "job_01k3x9v4e7q8w2m5n6p7r8s9t0",
    "created_by": "key:operator",
    "created_at": "2026-11-30T09:00:00Z",
    "ended_at": "2026-11-30T09:01:12Z",
}
