"""Evidence for tests: a cycle with every gate open, to be varied."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from api.rebalancing.evidence import Compared, Drift, Evidence, Figures, Recording, Timeliness
from placement.problem import LocalScope, Objective

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
"""A Monday."""

RUNNING = Figures(
    local_gpu=0.40,
    local_node=0.60,
    imbalance=1.20,
    worst_window_imbalance=1.30,
    balancedness=1 / 1.2,
    overflow_share=0.01,
)
PLANNED = replace(RUNNING, local_gpu=0.62, local_node=0.80, imbalance=1.10, worst_window_imbalance=1.15)


def compared(**changes: Any) -> Compared:
    usual: dict[str, Any] = {
        "objective": Objective.LOCALITY, "local_scope": LocalScope.GPU, "running": RUNNING, "planned": PLANNED,
        "max_imbalance": 1.05, "moved_slots": 100, "moved_bytes": 100 * 2**20,
        "recorded_at": NOON - timedelta(minutes=1),
    }  # fmt: skip
    return Compared(**(usual | changes))


def balanced(before: float, after: float) -> Compared:
    """Two layouts of the objective balance, by the imbalance of their worst window."""
    return compared(
        objective=Objective.BALANCE,
        running=replace(RUNNING, imbalance=before, worst_window_imbalance=before),
        planned=replace(PLANNED, imbalance=after, worst_window_imbalance=after),
    )


def evidence(**changes: Any) -> Evidence:
    """Everything is known, and nothing speaks against a push."""
    usual: dict[str, Any] = {
        "timeliness": Timeliness(at=NOON, last_change_at=NOON - timedelta(days=1)),
        "recording": Recording(tokens=10**9, windows=8),
        "drift": Drift(mean=0.3, worst=0.5, worst_layer=7),
        "compared": compared(),
    }
    return Evidence(**(usual | changes))
