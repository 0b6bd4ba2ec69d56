"""The problem refuses what no plan could be made for, and its error codes are stable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placement import errors
from placement.demand import Demand
from placement.errors import (
    BadOption,
    EmptyProfile,
    LayoutMismatch,
    RedundancyTooHigh,
    SlotCountMismatch,
    SlotsBelowExperts,
    SourceCountMismatch,
)
from placement.layout import Layout
from placement.problem import Problem
from placement.topology import Topology

UNIFORM = Demand.uniform(np.ones((2, 8), int))


def _problem(**changes: object) -> Problem:
    return replace(Problem(UNIFORM, Topology(4), slots_per_gpu=3), **changes)


def _layout(*, layers: int = 2, experts: int = 8, gpus: int = 4, slots_per_gpu: int = 3) -> Layout:
    row = np.arange(gpus * slots_per_gpu) % experts
    return Layout(np.tile(row, (layers, 1)), gpus=gpus, experts=experts)


def test_a_sound_problem_is_accepted():
    assert _problem(current=_layout(), max_imbalance=1.0).slots == 12


def test_an_empty_profile_is_refused():
    with pytest.raises(EmptyProfile):
        _problem(demand=Demand.uniform(np.zeros((2, 8), int)))


@pytest.mark.parametrize(("slots_per_gpu", "refused"), [(1, SlotsBelowExperts), (9, RedundancyTooHigh)])
def test_slots_that_cannot_work_are_refused(slots_per_gpu, refused):
    with pytest.raises(refused):
        _problem(slots_per_gpu=slots_per_gpu)


@pytest.mark.parametrize("slots_per_gpu", [2, 8])
def test_the_fewest_and_the_most_slots_are_accepted(slots_per_gpu):
    assert _problem(slots_per_gpu=slots_per_gpu).slots_per_gpu == slots_per_gpu


@pytest.mark.parametrize("hedge", [-0.1, 1.0, float("nan")])
def test_a_hedge_that_is_no_part_is_refused(hedge):
    with pytest.raises(BadOption, match=r"from 0 \(nothing is given up\) up to but not 1"):
        _problem(hedge=hedge)


@pytest.mark.parametrize("hedge", [0.0, 0.999])
def test_every_part_below_one_is_accepted(hedge):
    assert _problem(hedge=hedge).hedge == hedge


@pytest.mark.parametrize("max_imbalance", [0.99, float("nan")])
def test_an_imbalance_below_one_is_refused(max_imbalance):
    with pytest.raises(BadOption, match="the smallest possible imbalance is 1"):
        _problem(max_imbalance=max_imbalance)


def test_demand_measured_for_other_gpus_is_refused():
    measured = Demand(np.ones((1, 2, 8, 8), int), "measured", ("w",))

    with pytest.raises(SourceCountMismatch, match="8 source GPUs, the topology has 4"):
        _problem(demand=measured)
    assert _problem(demand=measured.with_uniform_sources()).demand.sources == "uniform"
    assert _problem(demand=measured, topology=Topology(8)).slots == 24


@pytest.mark.parametrize("other", [{"layers": 3}, {"experts": 9}], ids=["layers", "experts"])
def test_a_current_layout_of_another_model_is_refused(other):
    with pytest.raises(LayoutMismatch):
        _problem(current=_layout(**other))


@pytest.mark.parametrize("other", [{"slots_per_gpu": 4}, {"gpus": 6, "slots_per_gpu": 2}], ids=["slots", "gpus"])
def test_a_current_layout_on_other_slots_is_refused(other):
    with pytest.raises(SlotCountMismatch):
        _problem(current=_layout(**other))


# --------------------------------------------------------------------------------------------------------- errors


def _all_errors(root: type[errors.CodedError]) -> list[type[errors.CodedError]]:
    return [root, *(below for child in root.__subclasses__() for below in _all_errors(child))]


def test_a_code_is_the_class_name_in_capitals():
    assert errors.SlotsNotDivisible.code == "SLOTS_NOT_DIVISIBLE"
    assert errors.ExpertIdRange("slot 3").code == "EXPERT_ID_RANGE"


def test_the_tree_in_the_docstring_shows_every_error_of_the_package():
    ours = [error for error in _all_errors(errors.CodedError) if error.__module__ == errors.__name__]

    assert len(ours) > 20
    assert [error.__name__ for error in ours if error.__name__ not in errors.__doc__] == []


def test_the_docstring_is_the_default_message_and_remedies_are_kept():
    error = errors.Infeasible(remedies=("more slots",))

    assert str(error) == "No layout meets all limits."
    assert error.remedies == ("more slots",)
    assert str(errors.Infeasible("7 slots short")) == "7 slots short"
