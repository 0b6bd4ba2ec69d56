"""Proven limits: what no layout of a problem can pass.

Every bound names the relaxation it is the optimum of, and its docstring sketches the proof. They hold for
every layout with ``slots_per_gpu`` slots on each GPU and at least one slot for every expert, also for
layouts that put an expert on one GPU twice, under every dispatch rule unless said otherwise. The bounds over
host sets (:mod:`placement.bounds.capped`), by searching small layers (:mod:`placement.bounds.small`) and by contents of
one GPU (:mod:`placement.bounds.gpu_contents`) leave such duplicates out, as problems do.
"""

from __future__ import annotations

from placement.bounds.capped import HostSetBound, capped_local_bound, host_set_imbalance_bound
from placement.bounds.copies import CopiesBound, copies_bound
from placement.bounds.gpu_contents import GpuContentsBound, gpu_contents_bound
from placement.bounds.imbalance import ImbalanceBound, imbalance_bound
from placement.bounds.locality import (
    LocalityBound,
    fewest_slots_for_local_gpu,
    local_gpu_bound,
    local_node_bound,
)
from placement.bounds.overflow import (
    OverflowBound,
    overflow_bound,
    smallest_capacity_factor,
    smallest_slots_for_overflow,
)
from placement.bounds.small import SmallLayersBound, small_imbalance_bound, small_local_bound
from placement.bounds.step_time import StepTimeBound, step_time_bound
from placement.bounds.tight import TightBounds, bound_imbalance, bound_local_under_cap, tight_bounds

__all__ = [
    "CopiesBound",
    "GpuContentsBound",
    "HostSetBound",
    "ImbalanceBound",
    "LocalityBound",
    "OverflowBound",
    "SmallLayersBound",
    "StepTimeBound",
    "TightBounds",
    "bound_imbalance",
    "bound_local_under_cap",
    "capped_local_bound",
    "copies_bound",
    "fewest_slots_for_local_gpu",
    "gpu_contents_bound",
    "host_set_imbalance_bound",
    "imbalance_bound",
    "local_gpu_bound",
    "local_node_bound",
    "overflow_bound",
    "small_imbalance_bound",
    "small_local_bound",
    "smallest_capacity_factor",
    "smallest_slots_for_overflow",
    "step_time_bound",
    "tight_bounds",
]
