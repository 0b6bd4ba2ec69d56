"""Proven limits: what no layout of a problem can pass.

Every bound names the relaxation it is the optimum of, and its docstring sketches the proof. They hold for
every layout with ``slots_per_gpu`` slots on each GPU and at least one slot for every expert, also for
layouts that put an expert on one GPU twice, under every dispatch rule unless said otherwise.
"""

from __future__ import annotations

from placement.bounds.imbalance import ImbalanceBound, imbalance_bound
from placement.bounds.locality import (
    LocalityBound,
    fewest_slots_for_local_gpu,
    local_gpu_bound,
    local_node_bound,
)

__all__ = [
    "ImbalanceBound",
    "LocalityBound",
    "fewest_slots_for_local_gpu",
    "imbalance_bound",
    "local_gpu_bound",
    "local_node_bound",
]
