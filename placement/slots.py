"""Slot arithmetic: how many slots a model needs, may have, and can use."""

from __future__ import annotations

from placement.errors import (
    BadOption,
    DraftSlotsNotDivisible,
    GpusNotPositive,
    NotEnoughLiveSlots,
    RedundancyTooHigh,
    SlotsBelowExperts,
    SlotsNotDivisible,
)


def smallest_slots_per_gpu(*, experts: int, gpus: int) -> int:
    """Return the fewest slots per GPU that hold every expert once."""
    _check_gpus(gpus)
    return -(-experts // gpus)


def slots_per_gpu_from_redundant(*, experts: int, gpus: int, redundant: int) -> int:
    """Turn SGLang's ``--ep-num-redundant-experts`` into slots per GPU.

    Raises
    ------
    SlotsNotDivisible
        With the nearest valid numbers of redundant slots.
    SlotsBelowExperts, RedundancyTooHigh, GpusNotPositive
        As in :func:`check_slots_per_gpu`.
    """
    _check_gpus(gpus)
    slots, rest = divmod(experts + redundant, gpus)
    if rest:
        valid = nearest_valid_redundant(experts=experts, gpus=gpus, redundant=redundant)
        raise SlotsNotDivisible(
            f"{experts} experts + {redundant} redundant = {experts + redundant} slots do not divide by {gpus} GPUs; "
            f"use {' or '.join(map(str, valid))} redundant slots."
        )
    check_slots_per_gpu(experts=experts, gpus=gpus, slots_per_gpu=slots)
    return slots


def nearest_valid_redundant(*, experts: int, gpus: int, redundant: int) -> list[int]:
    """Return the valid redundant counts next to ``redundant``: two, or one at an end of the range.

    Valid is what divides by the GPUs, holds every expert, and needs no expert twice on one GPU.
    """
    lowest = smallest_slots_per_gpu(experts=experts, gpus=gpus) * gpus - experts
    highest = experts * (gpus - 1)
    below = (experts + redundant) // gpus * gpus - experts
    first = min(max(below, lowest), highest)
    return [value for value in (first, first + gpus) if value <= highest]


def check_slots_per_gpu(*, experts: int, gpus: int, slots_per_gpu: int) -> None:
    """Refuse slot counts that cannot hold every expert, or only by doubling one on a GPU.

    Raises
    ------
    SlotsBelowExperts
        ``slots_per_gpu * gpus < experts``.
    RedundancyTooHigh
        ``slots_per_gpu > experts``.
    GpusNotPositive
        ``gpus < 1``.
    """
    _check_gpus(gpus)
    slots = slots_per_gpu * gpus
    if slots < experts:
        raise SlotsBelowExperts(
            f"{slots_per_gpu} slots on each of {gpus} GPUs are {slots} slots for {experts} experts; "
            f"at least {smallest_slots_per_gpu(experts=experts, gpus=gpus)} slots per GPU are needed."
        )
    if slots_per_gpu > experts:
        raise RedundancyTooHigh(
            f"{slots_per_gpu} slots per GPU for {experts} experts would put an expert on one GPU twice; at most "
            f"{experts} slots per GPU ({experts * (gpus - 1)} redundant slots in all) can be used."
        )


def check_draft_slots(*, draft_experts: int, draft_redundant: int, gpus: int) -> None:
    """Refuse a GPU count that suits the target model but not its draft (MTP) model."""
    _check_gpus(gpus)
    if (draft_experts + draft_redundant) % gpus:
        valid = nearest_valid_redundant(experts=draft_experts, gpus=gpus, redundant=draft_redundant)
        raise DraftSlotsNotDivisible(
            f"the draft model's {draft_experts} experts + {draft_redundant} redundant do not divide by {gpus} GPUs; "
            f"give the draft {' or '.join(map(str, valid))} redundant slots, or a layout of its own."
        )


def check_live_slots(*, experts: int, slots_per_gpu: int, live_gpus: int) -> None:
    """Refuse to plan for the GPUs left after failures when they cannot hold every expert."""
    if slots_per_gpu < 1:
        raise BadOption(f"slots_per_gpu is {slots_per_gpu}; a GPU has at least 1 slot.")
    if slots_per_gpu * live_gpus < experts:
        needed = -(-experts // slots_per_gpu)
        raise NotEnoughLiveSlots(
            f"{live_gpus} live GPUs x {slots_per_gpu} slots are {live_gpus * slots_per_gpu} slots for {experts} "
            f"experts; at least {needed} live GPUs are needed."
        )


def _check_gpus(gpus: int) -> None:
    if gpus < 1:
        raise GpusNotPositive(f"got {gpus} GPUs; at least 1 is needed.")
