"""Layouts that every plan is compared with: same slots, same dispatch, same ruler.

Each baseline takes a problem and a seed and returns a valid layout for all decoder layers. Layers
without any demand get the trivial row. ``BASELINES`` lists them in the order in which they are shown.
"""

from __future__ import annotations

from typing import Protocol

from placement.baselines.eplb import EplbMode, EplbPlan, eplb, plan_eplb
from placement.baselines.hot_replication import hot_replication
from placement.baselines.random_placement import RANDOM_SEEDS, random_placement
from placement.baselines.trivial import trivial
from placement.layout import Layout
from placement.problem import Problem


class Baseline(Protocol):
    """A way to make a layout; only ``random`` reads the seed."""

    def __call__(self, problem: Problem, *, seed: int = 0) -> Layout: ...


BASELINES: dict[str, Baseline] = {
    "trivial": trivial,
    "random": random_placement,
    "eplb": eplb,
    "hot_replication": hot_replication,
}

__all__ = [
    "BASELINES",
    "RANDOM_SEEDS",
    "Baseline",
    "EplbMode",
    "EplbPlan",
    "eplb",
    "hot_replication",
    "plan_eplb",
    "random_placement",
    "trivial",
]
