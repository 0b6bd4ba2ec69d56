"""The locality bounds: known values, the closed form against the flow, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.bounds import fewest_slots_for_local_gpu, local_gpu_bound, local_node_bound
from placement.bounds.hosting import copies_filling_the_hottest, hosts_of_copies, most_hosted_tokens
from placement.demand import Demand
from placement.errors import BadOption, EmptyProfile, RedundancyTooHigh, SlotsBelowExperts, SourceCountMismatch
from placement.slots import smallest_slots_per_gpu
from placement.topology import Topology


def measured(tokens_SE: object, layers: int = 1) -> Demand:
    tokens = np.asarray(tokens_SE)
    return Demand(np.broadcast_to(tokens, (1, layers, *tokens.shape)), "measured", ("all",))


class TestKnownValues:
    def test_one_gpu_serves_everything(self) -> None:
        bound = local_gpu_bound(Demand.uniform([[3, 2, 1]]), Topology(1), 3)
        assert bound.share == 1.0
        assert bound.tokens_L.tolist() == [6.0]

    def test_without_redundant_slots_a_uniform_share_is_one_over_gpus(self) -> None:
        assert local_gpu_bound(Demand.uniform([[9, 5, 3, 1]]), Topology(4), 1).share == pytest.approx(0.25)

    def test_uniform_hottest_expert_everywhere(self) -> None:
        # 2 GPUs x 3 slots for 4 experts: the two hottest on both GPUs.
        bound = local_gpu_bound(Demand.uniform([[9, 5, 3, 1]]), Topology(2), 3)
        assert bound.share == pytest.approx((9 + 5 + 3 / 2 + 1 / 2) / 18)
        assert bound.hosts_LEG[0].sum(axis=1).tolist() == [2, 2, 1, 1]

    def test_measured_experts_go_to_their_users(self) -> None:
        bound = local_gpu_bound(measured([[8, 0, 1, 0], [0, 7, 0, 2]]), Topology(2), 2)
        assert bound.share == 1.0
        assert bound.hosts_LEG[0].T.tolist() == [[True, False, True, False], [False, True, False, True]]

    def test_an_unused_expert_takes_a_slot_from_a_used_one(self) -> None:
        # Both GPUs would take experts 0 and 1, but expert 2 must be somewhere: the cheapest loss is 3.
        assert local_gpu_bound(measured([[9, 4, 0], [6, 3, 0]]), Topology(2), 2).share == pytest.approx(19 / 22)

    def test_measured_beats_uniform_when_sources_differ(self) -> None:
        demand = measured([[8, 0, 1, 0], [0, 7, 0, 2]])
        uniform = local_gpu_bound(demand.with_uniform_sources(), Topology(2), 2)
        assert uniform.share == pytest.approx(0.5)

    def test_layers_without_demand_count_nothing(self) -> None:
        demand = Demand(np.array([[[[0, 0], [0, 0]], [[3, 1], [0, 2]]]]), "measured", ("all",))
        bound = local_gpu_bound(demand, Topology(2), 1)
        assert bound.tokens_L.tolist() == [0.0, 5.0]
        assert bound.share == pytest.approx(5 / 6)
        assert bound.hosts_LEG[0].any(axis=1).all()

    def test_windows_share_one_layout(self) -> None:
        # Each window alone could be served at home in full; together only half.
        tokens_WLSE = np.array([[[[4, 0], [0, 4]]], [[[0, 4], [4, 0]]]])
        demand = Demand(tokens_WLSE, "measured", ("a", "b"))
        assert local_gpu_bound(demand.pick_windows([0]), Topology(2), 1).share == 1.0
        assert local_gpu_bound(demand, Topology(2), 1).share == 0.5

    def test_one_node_is_home_to_everything(self) -> None:
        assert local_node_bound(Demand.uniform([[9, 5, 3, 1]]), Topology(2), 2).share == 1.0

    def test_copies_inside_a_node_add_nothing(self) -> None:
        # 2 nodes x 2 GPUs x 1 slot for 3 experts: one expert can be in both nodes.
        bound = local_node_bound(Demand.uniform([[6, 2, 2]]), Topology(4, 2), 1)
        assert bound.share == pytest.approx((6 + 2 / 2 + 2 / 2) / 10)

    def test_slots_beyond_the_nodes_need_hold_its_hottest_experts(self) -> None:
        bound = local_node_bound(measured([[5, 1], [2, 1], [1, 9], [0, 9]]), Topology(4, 2), 1)
        assert bound.share == 1.0
        roomy = local_node_bound(measured([[5, 1, 1], [2, 1, 1], [1, 9, 1], [0, 9, 1]]), Topology(4, 2), 2)
        assert roomy.hosts_LEG[0].sum(axis=1).tolist() == [3, 3, 2]

    def test_the_relaxation_is_named(self) -> None:
        uniform, sources = Demand.uniform([[2, 1]]), measured([[2, 1], [1, 1]])
        assert "closed form" in local_gpu_bound(uniform, Topology(2), 1).relaxation
        assert "min-cost flow" in local_gpu_bound(sources, Topology(2), 1).relaxation
        assert "nodes" in local_node_bound(sources, Topology(2, 2), 1).relaxation


@st.composite
def uniform_cases(draw: st.DrawFn) -> tuple[list[int], int, int]:
    experts = draw(st.integers(1, 20))
    gpus = draw(st.integers(1, 6))
    slots_per_gpu = draw(st.integers(smallest_slots_per_gpu(experts=experts, gpus=gpus), experts))
    counts = draw(st.lists(st.integers(0, 1000), min_size=experts, max_size=experts).filter(any))
    return counts, gpus, slots_per_gpu


@settings(max_examples=150, deadline=None)
@given(uniform_cases())
def test_closed_form_equals_the_flow(case: tuple[list[int], int, int]) -> None:
    """Uniform demand is measured demand with equal rows: both ways give the same optimum."""
    counts, gpus, slots_per_gpu = case
    by_count = local_gpu_bound(Demand.uniform([counts]), Topology(gpus), slots_per_gpu)
    by_flow = local_gpu_bound(measured(np.tile(counts, (gpus, 1))), Topology(gpus), slots_per_gpu)
    assert by_count.share == pytest.approx(by_flow.share, rel=1e-12)
    assert by_count.tokens_L * gpus == pytest.approx(by_flow.tokens_L, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(uniform_cases(), st.integers(1, 2))
def test_hosts_are_a_valid_layout(case: tuple[list[int], int, int], nodes: int) -> None:
    counts, gpus, slots_per_gpu = case
    topology = Topology(gpus, nodes if gpus % nodes == 0 else 1)
    for bound in (local_gpu_bound, local_node_bound):
        hosts_LEG = bound(Demand.uniform([counts, [1] * len(counts)]), topology, slots_per_gpu).hosts_LEG
        assert (hosts_LEG.sum(axis=1) == slots_per_gpu).all()
        assert hosts_LEG.any(axis=2).all()


class TestFlow:
    def test_more_room_is_never_worse(self) -> None:
        tokens_ME = np.random.default_rng(5).integers(0, 100, size=(3, 12))
        optima = [most_hosted_tokens(tokens_ME, room=room)[0] for room in range(4, 13)]
        assert optima == sorted(optima)
        assert optima[-1] == tokens_ME.sum()

    @pytest.mark.parametrize("scale", [2**20, 2**44, 2**52])
    def test_huge_counts_stay_an_upper_bound(self, scale: int) -> None:
        """Counts of 46 bits and more are rounded up: sound, and wrong by less than one part in 2^40."""
        small_ME = np.random.default_rng(8).integers(0, 100, size=(4, 9))
        exact, _ = most_hosted_tokens(small_ME, room=3)
        huge_ME = small_ME * scale + (small_ME > 0)
        bound, hosted_ME = most_hosted_tokens(huge_ME, room=3)
        reached = int(huge_ME[hosted_ME].sum())
        assert reached >= exact * scale
        assert reached <= bound <= reached + reached / 2**40

    def test_copies_keep_what_is_held(self) -> None:
        copies_LE = copies_filling_the_hottest(
            np.array([[5, 9, 1, 7]]), held_LE=np.array([[1, 0, 2, 1]]), sites=2, room=3
        )
        assert copies_LE.tolist() == [[1, 2, 2, 1]]

    def test_copies_of_an_expert_land_on_different_sites(self) -> None:
        hosts_LEM = hosts_of_copies(np.array([[1, 3, 2, 3]]), sites=3)
        assert hosts_LEM[0].sum(axis=1).tolist() == [1, 3, 2, 3]
        assert hosts_LEM[0].sum(axis=0).tolist() == [3, 3, 3]


class TestFewestSlots:
    @pytest.mark.parametrize("target", [0.0, 0.2, 0.3, 0.6, 0.9, 1.0])
    def test_equals_trying_one_after_the_other(self, target: float) -> None:
        demand = Demand.uniform([[40, 30, 20, 10, 5, 5, 3, 3, 1, 0]])
        enough = [s for s in range(3, 11) if local_gpu_bound(demand, Topology(4), s).share >= target]
        assert fewest_slots_for_local_gpu(demand, Topology(4), target) == enough[0]

    @pytest.mark.parametrize("target", [-0.1, 1.5, float("nan")])
    def test_a_share_lies_between_0_and_1(self, target: float) -> None:
        with pytest.raises(BadOption, match="between 0 and 1"):
            fewest_slots_for_local_gpu(Demand.uniform([[1, 1]]), Topology(2), target)


@pytest.mark.parametrize("bound", [local_gpu_bound, local_node_bound])
class TestBadInput:
    def test_sources_of_another_machine(self, bound: object) -> None:
        with pytest.raises(SourceCountMismatch, match="measured for 2 source GPUs, the topology has 4"):
            bound(measured([[1, 2], [3, 4]]), Topology(4), 1)  # type: ignore[operator]

    def test_too_few_slots(self, bound: object) -> None:
        with pytest.raises(SlotsBelowExperts):
            bound(Demand.uniform([[1, 2, 3]]), Topology(2), 1)  # type: ignore[operator]

    def test_too_many_slots(self, bound: object) -> None:
        with pytest.raises(RedundancyTooHigh):
            bound(Demand.uniform([[1, 2, 3]]), Topology(2), 4)  # type: ignore[operator]

    def test_nothing_recorded(self, bound: object) -> None:
        with pytest.raises(EmptyProfile):
            bound(Demand.uniform([[0, 0, 0]]), Topology(2), 2)  # type: ignore[operator]
