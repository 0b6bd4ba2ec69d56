"""Slot arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import (
    BadOption,
    DraftSlotsNotDivisible,
    GpusNotPositive,
    InvalidInput,
    NotEnoughLiveSlots,
    RedundancyTooHigh,
    SlotsBelowExperts,
    SlotsNotDivisible,
)
from placement.slots import (
    check_draft_slots,
    check_live_slots,
    check_slots_per_gpu,
    nearest_valid_redundant,
    slots_per_gpu_from_redundant,
    smallest_slots_per_gpu,
)
from tests.case_files import case, case_json

EXPERTS, GPUS = st.integers(1, 400), st.integers(1, 80)


# --------------------------------------------------------------------------------------------------------- cases


def test_redundant_slots_that_do_not_divide_are_refused_with_the_valid_numbers():
    known = case("L01")
    oracle = known["expect"]["oracle"]
    request = case_json("L01", "request.json")
    sizes = {"experts": request["num_experts"], "gpus": request["ep_size"], "redundant": request["num_redundant"]}

    with pytest.raises(SlotsNotDivisible) as refused:
        slots_per_gpu_from_redundant(**sizes)

    assert refused.value.code == known["expect"]["error_code"]
    assert nearest_valid_redundant(**sizes) == oracle["valid_redundant"]
    assert "32 or 104" in refused.value.detail


def test_the_smallest_number_of_slots_is_the_default():
    known = case("L02")
    oracle = known["expect"]["oracle"]
    request = case_json("L02", "request.json")

    slots_per_gpu = smallest_slots_per_gpu(experts=request["num_experts"], gpus=request["ep_size"])

    assert slots_per_gpu * request["ep_size"] - request["num_experts"] == oracle["num_redundant"]


def test_more_slots_than_can_be_used_are_refused_with_the_most_useful_number():
    known = case("L07")
    request = case_json("L07", "request.json")

    with pytest.raises(RedundancyTooHigh) as refused:
        slots_per_gpu_from_redundant(
            experts=request["num_experts"], gpus=request["ep_size"], redundant=request["num_redundant"]
        )

    assert refused.value.code == known["expect"]["error_code"]
    assert f"{known['expect']['oracle']['max_useful_redundant']} redundant slots" in refused.value.detail


def test_fewer_slots_than_experts_are_refused_with_the_number_needed():
    known = case("L08")
    request = case_json("L08", "request.json")
    slots_per_gpu = request["num_slots"] // request["ep_size"]

    with pytest.raises(SlotsBelowExperts, match="at least 2 slots per GPU") as refused:
        check_slots_per_gpu(experts=request["num_experts"], gpus=request["ep_size"], slots_per_gpu=slots_per_gpu)

    assert refused.value.code == known["expect"]["error_code"]


def test_a_gpu_count_that_suits_the_model_but_not_its_draft_is_refused():
    known = case("L12")
    request = case_json("L12", "request.json")
    target, draft = request["models"]

    slots_per_gpu_from_redundant(
        experts=target["num_experts"], gpus=request["ep_size"], redundant=target["num_redundant"]
    )
    with pytest.raises(DraftSlotsNotDivisible, match="32 or 104") as refused:
        check_draft_slots(
            draft_experts=draft["num_experts"], draft_redundant=draft["num_redundant"], gpus=request["ep_size"]
        )

    assert refused.value.code == known["expect"]["error_code"]


def test_too_few_live_gpus_are_refused_with_the_number_needed():
    known = case("U23")
    oracle = known["expect"]["oracle"]
    request = case_json("U23", "request.json")
    live = sum(request["active_ranks"])
    assert live * request["slots_per_rank"] == oracle["live_slots"]

    with pytest.raises(NotEnoughLiveSlots, match="at least 4 live GPUs") as refused:
        check_live_slots(experts=request["num_experts"], slots_per_gpu=request["slots_per_rank"], live_gpus=live)

    assert refused.value.code == known["expect"]["error_code"]
    check_live_slots(experts=request["num_experts"], slots_per_gpu=request["slots_per_rank"], live_gpus=4)


# --------------------------------------------------------------------------------------------------------- by hand


def test_redundant_slots_become_slots_per_gpu():
    assert slots_per_gpu_from_redundant(experts=256, gpus=32, redundant=32) == 9
    assert slots_per_gpu_from_redundant(experts=8, gpus=8, redundant=0) == 1


def test_every_expert_on_every_gpu_is_the_most_that_is_allowed():
    check_slots_per_gpu(experts=8, gpus=4, slots_per_gpu=8)
    with pytest.raises(RedundancyTooHigh):
        check_slots_per_gpu(experts=8, gpus=4, slots_per_gpu=9)


def test_exactly_as_many_slots_as_experts_are_allowed():
    check_slots_per_gpu(experts=8, gpus=4, slots_per_gpu=2)
    with pytest.raises(SlotsBelowExperts):
        check_slots_per_gpu(experts=9, gpus=4, slots_per_gpu=2)


def test_a_draft_that_divides_is_allowed():
    check_draft_slots(draft_experts=256, draft_redundant=32, gpus=72)


def test_a_number_beyond_every_valid_one_is_answered_with_the_largest():
    with pytest.raises(SlotsNotDivisible, match="use 6 redundant slots"):
        slots_per_gpu_from_redundant(experts=2, gpus=4, redundant=15)


def test_a_negative_number_of_redundant_slots_is_refused():
    with pytest.raises(SlotsBelowExperts):
        slots_per_gpu_from_redundant(experts=8, gpus=4, redundant=-4)
    with pytest.raises(SlotsNotDivisible, match="use 0 or 4 redundant slots"):
        slots_per_gpu_from_redundant(experts=8, gpus=4, redundant=-5)


@pytest.mark.parametrize("gpus", [0, -1])
def test_at_least_one_gpu_is_needed(gpus):
    for refused in (
        lambda: smallest_slots_per_gpu(experts=8, gpus=gpus),
        lambda: slots_per_gpu_from_redundant(experts=8, gpus=gpus, redundant=0),
        lambda: check_slots_per_gpu(experts=8, gpus=gpus, slots_per_gpu=2),
        lambda: check_draft_slots(draft_experts=8, draft_redundant=0, gpus=gpus),
    ):
        with pytest.raises(GpusNotPositive):
            refused()


def test_a_live_gpu_has_at_least_one_slot():
    with pytest.raises(BadOption, match="slots_per_gpu is 0"):
        check_live_slots(experts=8, slots_per_gpu=0, live_gpus=2)


# ------------------------------------------------------------------------------------------------------- properties


@given(EXPERTS, GPUS, st.integers(-500, 40_000))
def test_the_numbers_proposed_are_accepted_and_next_to_what_was_asked(experts, gpus, redundant):
    proposed = nearest_valid_redundant(experts=experts, gpus=gpus, redundant=redundant)

    accepted = [
        value for value in range(-experts, experts * gpus) if not _refused(experts=experts, gpus=gpus, redundant=value)
    ]
    below = [value for value in accepted if value <= redundant][-1:]
    above = [value for value in accepted if value > redundant][:1]
    assert proposed
    assert set(below + above) <= set(proposed) <= set(accepted)


@given(EXPERTS, GPUS)
def test_the_smallest_number_of_slots_is_accepted_and_one_less_is_not(experts, gpus):
    smallest = smallest_slots_per_gpu(experts=experts, gpus=gpus)

    check_slots_per_gpu(experts=experts, gpus=gpus, slots_per_gpu=smallest)
    with pytest.raises(SlotsBelowExperts):
        check_slots_per_gpu(experts=experts, gpus=gpus, slots_per_gpu=smallest - 1)


def _refused(*, experts: int, gpus: int, redundant: int) -> bool:
    try:
        slots_per_gpu_from_redundant(experts=experts, gpus=gpus, redundant=redundant)
    except InvalidInput:
        return True
    return False
