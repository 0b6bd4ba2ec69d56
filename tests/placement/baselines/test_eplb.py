"""EPLB must be the published algorithm, slot for slot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from placement.baselines import EplbMode, eplb, plan_eplb
from placement.baselines.eplb import rebalance
from placement.demand import Demand
from placement.errors import BadOption, GroupsNotDivisible, InvalidInput
from placement.problem import Problem
from placement.topology import Topology

GOLDEN_CASES = json.loads(Path(__file__).with_name("eplb_golden.json").read_text())

# The example in the README of https://github.com/deepseek-ai/EPLB
README_COUNTS = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
README_MAP = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def problem_of(counts: object, *, gpus: int, slots: int, nodes: int = 1) -> Problem:
    return Problem(Demand.uniform(np.asarray(counts)), Topology(gpus, nodes), slots_per_gpu=slots // gpus)


def test_readme_example() -> None:
    plan = plan_eplb(problem_of(README_COUNTS, gpus=8, slots=16, nodes=2), expert_groups=4)
    assert plan.layout.slot_to_expert_LP.tolist() == README_MAP
    assert plan.mode is EplbMode.HIERARCHICAL
    assert plan.notices == ()


@pytest.mark.parametrize("case", GOLDEN_CASES, ids=[case["name"] for case in GOLDEN_CASES])
def test_map_of_the_engines_own_function(case: dict) -> None:
    expected = case["physical_to_logical_map"]
    problem = problem_of(case["counts"], gpus=case["gpus"], slots=len(expected[0]), nodes=case["nodes"])
    plan = plan_eplb(problem, expert_groups=case["groups"])
    assert plan.mode is (EplbMode.GLOBAL if case["groups"] is None else EplbMode.HIERARCHICAL)
    assert plan.layout.slot_to_expert_LP.tolist() == expected


def test_golden_cases_cover_what_can_differ() -> None:
    """The tables must hold duplicates on a GPU, unused experts, equal counts and counts beyond float32."""
    counts = [np.array(case["counts"]) for case in GOLDEN_CASES]
    assert any((array == 0).any() for array in counts)
    assert any((array > 2**24).any() for array in counts)
    assert any(np.unique(array[0]).size < array.shape[1] for array in counts)
    layouts = [eplb(problem_of(case["counts"], gpus=case["gpus"], slots=len(case["physical_to_logical_map"][0])))
               for case in GOLDEN_CASES]  # fmt: skip
    assert any(layout.duplicated_slots() for layout in layouts)


def test_weights_are_summed_over_windows_and_sources() -> None:
    generator = np.random.default_rng(3)
    tokens_WLSE = generator.integers(0, 1000, size=(3, 2, 4, 16))
    split = Problem(Demand(tokens_WLSE, "measured", ("a", "b", "c")), Topology(4), slots_per_gpu=5)
    merged = problem_of(tokens_WLSE.sum(axis=(0, 2)), gpus=4, slots=20)
    assert eplb(split) == eplb(merged)


def test_layer_without_demand_keeps_the_trivial_row() -> None:
    """The published algorithm gives such a layer all spare copies of expert 0."""
    counts = np.array([[0] * 8, [5, 1, 1, 1, 1, 1, 1, 1]])
    assert rebalance(counts, slots=12, gpus=4)[0].tolist().count(0) == 5
    layout = eplb(problem_of(counts, gpus=4, slots=12))
    assert layout.slot_to_expert_LP[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]


def test_two_replicas_on_one_gpu_stay() -> None:
    """An honest baseline: the published algorithm does not look at where replicas meet."""
    layout = eplb(problem_of([[1000, 1, 1, 1]], gpus=2, slots=8))
    assert layout.duplicated_slots() == 3


def test_unused_experts_keep_one_slot() -> None:
    """Case L10: half of the experts are never picked."""
    layout = eplb(problem_of([[40, 30, 20, 10, 0, 0, 0, 0]], gpus=4, slots=12))
    assert layout.replicas_LEG[0].sum(axis=1).tolist()[4:] == [1, 1, 1, 1]


class TestGroups:
    """Case L05 and its kind: expert groups that do not divide."""

    COUNTS = np.ones((1, 24), dtype=np.int64)

    def test_without_groups_there_is_nothing_to_say(self) -> None:
        plan = plan_eplb(problem_of(self.COUNTS, gpus=6, slots=24, nodes=3))
        assert (plan.mode, plan.notices) == (EplbMode.GLOBAL, ())

    def test_groups_that_divide_are_used(self) -> None:
        plan = plan_eplb(problem_of(self.COUNTS, gpus=6, slots=24, nodes=3), expert_groups=6)
        assert (plan.mode, plan.notices) == (EplbMode.HIERARCHICAL, ())

    @pytest.mark.parametrize(("groups", "nodes"), [(8, 3), (4, 3), (5, 1), (7, 2), (48, 2)])
    def test_auto_plans_globally_and_says_so(self, groups: int, nodes: int) -> None:
        problem = problem_of(self.COUNTS, gpus=6, slots=24, nodes=nodes)
        plan = plan_eplb(problem, expert_groups=groups)
        assert [notice.code for notice in plan.notices] == ["GROUPS_IGNORED"]
        assert str(groups) in plan.notices[0].detail
        assert plan.layout == plan_eplb(problem, mode=EplbMode.GLOBAL).layout

    @pytest.mark.parametrize(("groups", "nodes"), [(8, 3), (4, 3), (5, 1), (7, 2), (48, 2)])
    def test_explicit_hierarchical_is_refused(self, groups: int, nodes: int) -> None:
        problem = problem_of(self.COUNTS, gpus=6, slots=24, nodes=nodes)
        with pytest.raises(GroupsNotDivisible) as caught:
            plan_eplb(problem, expert_groups=groups, mode=EplbMode.HIERARCHICAL)
        assert caught.value.code == "GROUPS_NOT_DIVISIBLE"
        assert str(groups) in caught.value.detail

    def test_the_sentence_names_the_next_valid_value(self) -> None:
        problem = problem_of(self.COUNTS, gpus=6, slots=24, nodes=3)
        assert "over 2 nodes they would" in plan_eplb(problem, expert_groups=8).notices[0].detail
        assert "; 6 groups would" in plan_eplb(problem, expert_groups=7).notices[0].detail

    def test_global_ignores_groups_without_a_word(self) -> None:
        plan = plan_eplb(problem_of(self.COUNTS, gpus=6, slots=24, nodes=3), expert_groups=8, mode=EplbMode.GLOBAL)
        assert (plan.mode, plan.notices) == (EplbMode.GLOBAL, ())

    def test_hierarchical_needs_groups(self) -> None:
        with pytest.raises(BadOption, match="number of expert groups"):
            plan_eplb(problem_of(self.COUNTS, gpus=6, slots=24), mode=EplbMode.HIERARCHICAL)

    @pytest.mark.parametrize("groups", [0, -4])
    def test_groups_are_positive(self, groups: int) -> None:
        with pytest.raises(BadOption, match=f"expert_groups is {groups}"):
            plan_eplb(problem_of(self.COUNTS, gpus=6, slots=24), expert_groups=groups)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_a_number_never_reaches_eplb(value: float) -> None:
    """Case P24: the published algorithm accepts NaN and gives that expert every spare slot."""
    with pytest.raises(InvalidInput):
        Demand.uniform(np.array([[value, 1, 1, 1, 1, 1, 1, 1]]))
