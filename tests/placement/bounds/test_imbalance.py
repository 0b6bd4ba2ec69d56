"""The imbalance bound on problems whose answer is known, and what each dispatch rule may assume."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.bounds import imbalance_bound
from placement.bounds.counting import SHARE_RULES, ShareRule
from placement.bounds.imbalance import share_rule
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import EmptyProfile, RedundancyTooHigh, SlotsBelowExperts
from placement.topology import Topology

BOTH_RULES = pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.NEAREST_STATIC])


def bound_of(counts: object, *, gpus: int, slots_per_gpu: int, dispatch: Dispatch = Dispatch.EVEN) -> float:
    return imbalance_bound(Demand.uniform(np.asarray(counts)), Topology(gpus), slots_per_gpu, dispatch).imbalance


@BOTH_RULES
class TestKnownValues:
    def test_equal_experts_can_be_flat(self, dispatch: Dispatch) -> None:
        assert bound_of([[3, 3, 3, 3]], gpus=2, slots_per_gpu=2, dispatch=dispatch) == 1.0

    def test_one_slot_per_gpu_is_the_heaviest_expert(self, dispatch: Dispatch) -> None:
        assert bound_of([[8, 2, 1, 1]], gpus=4, slots_per_gpu=1, dispatch=dispatch) == pytest.approx(8 / 3)

    def test_heaviest_expert_on_the_hosts_it_can_have(self, dispatch: Dispatch) -> None:
        # 4 GPUs x 2 slots for 7 experts: one redundant slot, so expert 0 has two hosts at most.
        bound = bound_of([[94, 1, 1, 1, 1, 1, 1]], gpus=4, slots_per_gpu=2, dispatch=dispatch)
        assert bound == pytest.approx(47 / 25)

    def test_slots_left_for_two_heavy_experts(self, dispatch: Dispatch) -> None:
        # One redundant slot: whichever of the two gets it, the other keeps its 47 on one GPU.
        bound = bound_of([[47, 47, 2, 1, 1, 1, 1]], gpus=4, slots_per_gpu=2, dispatch=dispatch)
        assert bound == pytest.approx(47 / 25)

    def test_three_equal_experts_on_two_gpus(self, dispatch: Dispatch) -> None:
        # No redundant slot: two of the three heavy ones meet on one GPU (P||Cmax).
        assert bound_of([[10, 10, 10, 0]], gpus=2, slots_per_gpu=2, dispatch=dispatch) == pytest.approx(20 / 15)

    def test_five_equal_experts_on_two_gpus(self, dispatch: Dispatch) -> None:
        assert bound_of([[4, 4, 4, 4, 4, 0]], gpus=2, slots_per_gpu=3, dispatch=dispatch) == pytest.approx(12 / 10)


def test_replicas_that_meet_in_pairs() -> None:
    """Seven heavy experts, 16 slots on 8 GPUs, equal shares: however slots are dealt, two halves meet."""
    counts = [[100] * 7 + [1]]
    assert bound_of(counts, gpus=8, slots_per_gpu=2) == pytest.approx(100 / (701 / 8))
    assert bound_of(counts, gpus=8, slots_per_gpu=2, dispatch=Dispatch.NEAREST_STATIC) == 1.0


def test_worst_window_counts() -> None:
    flat, skewed = [[1, 1]], [[9, 1]]
    bound = imbalance_bound(Demand.uniform([flat, skewed]), Topology(2), 1, Dispatch.NEAREST_DYNAMIC)
    assert bound.imbalance_W == pytest.approx([1.0, 1.8])
    assert bound.imbalance == pytest.approx(1.8)


def test_a_window_is_weighed_by_layers() -> None:
    """Sum of largest loads over sum of means: the flat layer with more tokens pulls the window down."""
    bound = imbalance_bound(Demand.uniform([[9, 1], [45, 45]]), Topology(2), 1, Dispatch.NEAREST_DYNAMIC)
    assert bound.max_load_WL[0] == pytest.approx([9, 45])
    assert bound.imbalance == pytest.approx((9 + 45) / (5 + 45))


def test_layers_and_windows_without_demand() -> None:
    tokens_WLE = np.array([[[0, 0], [9, 1]], [[0, 0], [0, 0]]])
    bound = imbalance_bound(Demand.uniform(tokens_WLE), Topology(2), 1, Dispatch.EVEN)
    assert bound.max_load_WL == pytest.approx(np.array([[0, 9], [0, 0]]))
    assert bound.imbalance_W == pytest.approx([1.8, 1.0])


@pytest.mark.parametrize(
    ("dispatch", "sources", "nodes", "rule"),
    [
        (Dispatch.EVEN, "uniform", 1, ShareRule.EQUAL),
        (Dispatch.EVEN, "measured", 2, ShareRule.EQUAL),
        (Dispatch.NEAREST_DYNAMIC, "uniform", 1, ShareRule.EQUAL),
        (Dispatch.NEAREST_DYNAMIC, "uniform", 2, ShareRule.ANY),
        (Dispatch.NEAREST_DYNAMIC, "measured", 1, ShareRule.ANY),
        (Dispatch.NEAREST_STATIC, "uniform", 1, ShareRule.ANY),
    ],
)
def test_rule_and_its_name(dispatch: Dispatch, sources: str, nodes: int, rule: ShareRule) -> None:
    demand = Demand.uniform([[2, 1]])
    if sources == "measured":
        demand = Demand(np.ones((1, 1, 2, 2), dtype=int), "measured", ("all",))
    assert share_rule(demand, Topology(2, nodes), dispatch) is rule
    assert imbalance_bound(demand, Topology(2, nodes), 1, dispatch).relaxation == SHARE_RULES[rule]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=2, max_size=12).filter(any), st.integers(1, 6), st.data())
def test_assuming_more_proves_more(counts: list[int], gpus: int, data: st.DataObject) -> None:
    """1 <= bound for any shares <= bound for equal shares <= everything on one GPU."""
    slots_per_gpu = data.draw(st.integers(-(-len(counts) // gpus), len(counts)))
    loose = bound_of([counts], gpus=gpus, slots_per_gpu=slots_per_gpu, dispatch=Dispatch.NEAREST_STATIC)
    tight = bound_of([counts], gpus=gpus, slots_per_gpu=slots_per_gpu, dispatch=Dispatch.EVEN)
    assert 1.0 <= loose <= tight * (1 + 1e-8)
    assert tight <= gpus


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=2, max_size=8).filter(any), st.integers(1, 2**40))
def test_only_shares_of_demand_matter(counts: list[int], scale: int) -> None:
    once = bound_of([counts], gpus=2, slots_per_gpu=len(counts) // 2 + 1)
    scaled = bound_of([[count * scale for count in counts]], gpus=2, slots_per_gpu=len(counts) // 2 + 1)
    assert scaled == pytest.approx(once, rel=1e-6)


class TestBadInput:
    def test_too_few_slots(self) -> None:
        with pytest.raises(SlotsBelowExperts):
            bound_of([[1, 2, 3]], gpus=2, slots_per_gpu=1)

    def test_too_many_slots(self) -> None:
        with pytest.raises(RedundancyTooHigh):
            bound_of([[1, 2, 3]], gpus=2, slots_per_gpu=4)

    def test_nothing_recorded(self) -> None:
        with pytest.raises(EmptyProfile):
            bound_of([[0, 0]], gpus=2, slots_per_gpu=1)
