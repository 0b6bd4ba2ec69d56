"""What every baseline owes: a valid layout for all decoder layers, the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.baselines import BASELINES, RANDOM_SEEDS, hot_replication, random_placement, trivial
from placement.baselines.hot_replication import hottest_that_fit
from placement.baselines.packing import pack_heaviest_first
from placement.demand import Demand
from placement.problem import Problem
from placement.slots import smallest_slots_per_gpu
from placement.topology import Topology


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw small problems with dense layers, unused experts, one or two nodes, every possible slot count."""
    experts = draw(st.integers(1, 24))
    nodes = draw(st.integers(1, 2))
    gpus = nodes * draw(st.integers(1, 4))
    slots_per_gpu = draw(st.integers(smallest_slots_per_gpu(experts=experts, gpus=gpus), experts))
    layers = draw(st.integers(1, 4))
    counts = st.lists(st.integers(0, 50), min_size=experts, max_size=experts)
    dense = st.just([0] * experts)
    rows = draw(st.lists(st.one_of(counts, dense), min_size=layers, max_size=layers))
    rows[0][0] += 1
    return Problem(Demand.uniform(np.array(rows)), Topology(gpus, nodes), slots_per_gpu=slots_per_gpu)


def small_problem(counts: object, *, gpus: int, slots_per_gpu: int) -> Problem:
    return Problem(Demand.uniform(np.asarray(counts)), Topology(gpus), slots_per_gpu=slots_per_gpu)


def test_registry_is_in_the_order_of_the_comparison() -> None:
    assert list(BASELINES) == ["trivial", "random", "eplb", "hot_replication"]


@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_layout_is_valid_and_repeatable(name: str, problem: Problem) -> None:
    layout = BASELINES[name](problem, seed=7)  # Layout itself refuses missing experts
    assert layout.layers == problem.demand.layers
    assert (layout.gpus, layout.slots_per_gpu) == (problem.topology.gpus, problem.slots_per_gpu)
    assert layout == BASELINES[name](problem, seed=7)


@pytest.mark.parametrize("name", ["trivial", "random", "hot_replication"])
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_no_expert_twice_on_a_gpu(name: str, problem: Problem) -> None:
    assert BASELINES[name](problem, seed=1).duplicated_slots() == 0


@pytest.mark.parametrize("name", BASELINES)
def test_layers_without_demand_get_the_trivial_row(name: str) -> None:
    problem = small_problem([[0] * 6, [9, 5, 4, 3, 2, 1], [0] * 6], gpus=3, slots_per_gpu=3)
    layout = BASELINES[name](problem, seed=0)
    assert layout.slot_to_expert_LP[[0, 2]].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2]] * 2


def test_trivial_wraps_around() -> None:
    layout = trivial(small_problem([[1, 2, 3], [3, 2, 1]], gpus=2, slots_per_gpu=2))
    assert layout.slot_to_expert_LP.tolist() == [[0, 1, 2, 0], [0, 1, 2, 0]]


class TestRandom:
    def test_five_different_seeds(self) -> None:
        problem = small_problem([list(range(1, 33))], gpus=4, slots_per_gpu=10)
        assert len({random_placement(problem, seed=seed).hash for seed in RANDOM_SEEDS}) == 5

    def test_layers_differ(self) -> None:
        layout = random_placement(small_problem(np.ones((2, 32), dtype=int), gpus=4, slots_per_gpu=8), seed=0)
        assert layout.slot_to_expert_LP[0].tolist() != layout.slot_to_expert_LP[1].tolist()

    def test_every_expert_is_equally_likely_everywhere(self) -> None:
        """Over 4000 layers each expert has 1.5 slots a layer, three GPUs alike: means within six deviations."""
        problem = small_problem(np.ones((4000, 8), dtype=int), gpus=3, slots_per_gpu=4)
        mean_EG = random_placement(problem, seed=11).replicas_LEG.mean(axis=0)
        assert np.abs(mean_EG - 0.5).max() < 6 * 0.5 / np.sqrt(4000)


class TestHotReplication:
    @pytest.mark.parametrize(
        ("experts", "gpus", "slots", "everywhere"),
        [(8, 4, 8, 0), (8, 4, 12, 1), (8, 4, 16, 2), (8, 2, 12, 4), (8, 4, 32, 8), (5, 1, 5, 5), (64, 8, 192, 18)],
    )
    def test_largest_number_that_fits(self, experts: int, gpus: int, slots: int, everywhere: int) -> None:
        assert hottest_that_fit(experts=experts, gpus=gpus, slots=slots) == everywhere

    @settings(max_examples=100, deadline=None)
    @given(problem=problems())
    def test_hot_everywhere_and_the_rest_at_least_once(self, problem: Problem) -> None:
        layout = hot_replication(problem)
        gpus, experts = problem.topology.gpus, problem.demand.experts
        everywhere = hottest_that_fit(experts=experts, gpus=gpus, slots=problem.slots)
        for layer in problem.demand.moe_layers:
            tokens_E = problem.demand.tokens_WLE[:, layer].sum(axis=0)
            replicas_E = layout.replicas_LEG[layer].sum(axis=1)
            hottest_first = np.argsort(-tokens_E, kind="stable")
            assert (replicas_E[hottest_first[:everywhere]] == gpus).all()
            # What is left over goes down the list: never a colder expert with more copies, but for the last
            # one taken, which lacks GPUs with room.
            left_over = problem.slots - everywhere * gpus - (experts - everywhere)
            assert (replicas_E[hottest_first[everywhere:]] - 1).sum() == left_over
            assert left_over < max(1, gpus - 1)

    def test_singles_are_packed_heaviest_first(self) -> None:
        layout = hot_replication(small_problem([[8, 7, 6, 5, 4, 3]], gpus=2, slots_per_gpu=3))
        assert layout.slot_to_expert_LP.tolist() == [[0, 3, 4, 1, 2, 5]]

    def test_left_over_slots_go_to_the_next_hottest(self) -> None:
        # K = 1 (expert 0). Experts 1 and 2 are alone beside it on GPUs 0 and 1, which thus have the two slots
        # left over: expert 1 takes the one on GPU 1, and as GPU 0 has it already, expert 2 the one there.
        layout = hot_replication(small_problem([[70, 60, 50, 4, 3, 2, 1]], gpus=4, slots_per_gpu=3))
        assert layout.replicas_LEG[0].sum(axis=1).tolist() == [4, 2, 2, 1, 1, 1, 1]

    def test_unused_experts_keep_one_slot(self) -> None:
        """Case L10: half of the experts are never picked."""
        layout = hot_replication(small_problem([[40, 30, 20, 10, 0, 0, 0, 0]], gpus=4, slots_per_gpu=3))
        assert layout.replicas_LEG[0].sum(axis=1).tolist()[4:] == [1, 1, 1, 1]


class TestPacking:
    def test_heaviest_first_on_the_lightest_pack(self) -> None:
        pack_XI, rank_XI = pack_heaviest_first(np.array([[1.0, 9.0, 5.0, 4.0]]), packs=2, room=2)
        assert pack_XI.tolist() == [[0, 0, 1, 1]]
        assert rank_XI.tolist() == [[1, 0, 0, 1]]

    def test_a_full_pack_takes_no_more(self) -> None:
        pack_XI, _ = pack_heaviest_first(np.array([[9.0, 0.0, 0.0, 0.0]]), packs=2, room=2)
        assert pack_XI.tolist() == [[0, 1, 1, 0]]

    def test_equal_items_and_packs_keep_their_order(self) -> None:
        pack_XI, rank_XI = pack_heaviest_first(np.ones((1, 4)), packs=2, room=3)
        assert pack_XI.tolist() == [[0, 1, 0, 1]]
        assert rank_XI.tolist() == [[0, 0, 1, 1]]

    def test_rows_do_not_mix(self) -> None:
        weight_XI = np.random.default_rng(0).random((5, 12))
        together, _ = pack_heaviest_first(weight_XI, packs=3, room=4)
        alone = [pack_heaviest_first(row[None], packs=3, room=4)[0][0].tolist() for row in weight_XI]
        assert together.tolist() == alone
