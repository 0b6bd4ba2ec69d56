"""The bound on overflow: by hand, and against every layout of tiny problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placement.bounds import overflow_bound, smallest_capacity_factor, smallest_slots_for_overflow
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import layout_from_hosts
from placement.score import score
from placement.topology import Topology
from tests.placement.bounds.brute_force import all_layouts
from tests.placement.bounds.tiny_problems import tiny_problem


def test_one_hot_expert_without_a_second_slot_overflows() -> None:
    demand = Demand.uniform([[70, 10, 10, 10]])
    bound = overflow_bound(demand, Topology(4), 1, Dispatch.EVEN, capacity_factor=1.25)
    assert bound.overflow_share == pytest.approx((70 - 1.25 * 25) / 100)
    assert (bound.window, bound.layer, bound.experts, bound.hosts) == (0, 0, 1, 1)


def test_slots_for_more_replicas_lower_the_bound() -> None:
    demand = Demand.uniform([[70, 10, 10, 10]])
    shares = [
        overflow_bound(demand, Topology(4), slots, Dispatch.EVEN, capacity_factor=1.25).overflow_share
        for slots in (1, 2, 3)
    ]
    assert shares[0] > shares[1] == 0.0
    assert smallest_slots_for_overflow(demand, Topology(4), 1, capacity_factor=1.25, max_overflow=0.0) == 2


def test_less_capacity_than_the_mean_always_overflows() -> None:
    demand = Demand.uniform([[25, 25, 25, 25]])
    bound = overflow_bound(demand, Topology(4), 1, Dispatch.EVEN, capacity_factor=0.8)
    assert bound.overflow_share == pytest.approx(0.2)


def test_below_the_smallest_capacity_factor_the_limit_cannot_be_kept() -> None:
    demand = Demand.uniform([[70, 10, 10, 10]])
    factor = smallest_capacity_factor(demand, Topology(4), 1, max_overflow=0.1)
    assert factor == pytest.approx(60 / 25)
    below = overflow_bound(demand, Topology(4), 1, Dispatch.EVEN, capacity_factor=factor * 0.99)
    assert below.overflow_share > 0.1


@pytest.mark.parametrize("seed", range(24))
def test_no_layout_passes_the_bound(seed: int) -> None:
    tiny = tiny_problem(seed)
    demand, topology = tiny.demand, tiny.topology
    rows = all_layouts(demand.experts, topology, tiny.slots_per_gpu)
    rng = np.random.default_rng(seed)
    chosen = list(itertools.islice(itertools.product(rows, repeat=demand.layers), 2000))
    picked = rng.permutation(len(chosen))[:30]
    for factor in (0.9, 1.0, 1.25, 1.6):
        bound = overflow_bound(demand, topology, tiny.slots_per_gpu, tiny.dispatch, capacity_factor=factor)
        for index in picked:
            layout = layout_from_hosts(chosen[index], experts=demand.experts)
            metrics = score(layout, demand, topology, dispatch=tiny.dispatch, capacity_factor=factor)
            assert max(window.overflow_share for window in metrics.windows) >= bound.overflow_share - 1e-9
