"""How many slots per GPU: given, from redundant slots, found (``--fit``), or the fewest that hold every expert."""

from __future__ import annotations

from collections.abc import Sequence

from placement.errors import BadOption
from placement.slots import (
    check_draft_slots,
    check_live_slots,
    check_slots_per_gpu,
    slots_per_gpu_from_redundant,
    smallest_slots_per_gpu,
)


def slots_from_options(
    *, experts: int, gpus: int, slots_per_gpu: int | None, redundant: int | None, fit: bool
) -> int | None:
    """Return slots per GPU, or None when they are to be found.

    Raises
    ------
    BadOption
        More than one of the three was given.
    SlotsNotDivisible, SlotsBelowExperts, RedundancyTooHigh
        See :mod:`placement.slots`.
    """
    if sum((slots_per_gpu is not None, redundant is not None, fit)) > 1:
        raise BadOption("--slots-per-gpu, --redundant and --fit exclude each other; give one.")
    if fit:
        return None
    if redundant is not None:
        return slots_per_gpu_from_redundant(experts=experts, gpus=gpus, redundant=redundant)
    slots = smallest_slots_per_gpu(experts=experts, gpus=gpus) if slots_per_gpu is None else slots_per_gpu
    check_slots_per_gpu(experts=experts, gpus=gpus, slots_per_gpu=slots)
    return slots


def check_draft(*, draft_experts: int | None, draft_redundant: int | None, redundant: int, gpus: int) -> None:
    """Check the draft (MTP) model: the engine gives it the target's redundant slots unless told otherwise."""
    if draft_experts is not None:
        if draft_experts < 1:
            raise BadOption(f"--draft-experts is {draft_experts}; a draft model has at least 1 expert.")
        if draft_redundant is not None and draft_redundant < 0:
            raise BadOption(f"--draft-redundant is {draft_redundant}; it is a whole number of at least 0.")
        extra = redundant if draft_redundant is None else draft_redundant
        check_draft_slots(draft_experts=draft_experts, draft_redundant=extra, gpus=gpus)


def live_gpu_count(live_gpus: str | None, *, gpus: int) -> int:
    """Return how many GPUs are alive: all, or those listed as ``0,1,3``."""
    if live_gpus is None:
        return gpus
    listed = _whole_numbers(live_gpus.split(","))
    if not listed or len(set(listed)) != len(listed) or max(listed) >= gpus:
        raise BadOption(f"--live-gpus {live_gpus!r} must list different GPUs from 0 to {gpus - 1}, like 0,1,3.")
    return len(listed)


def require_live_slots(*, experts: int, slots_per_gpu: int | None, live: int, gpus: int) -> None:
    """Refuse a plan for the GPUs that are left when they cannot hold every expert."""
    if live < gpus and slots_per_gpu is not None:
        check_live_slots(experts=experts, slots_per_gpu=slots_per_gpu, live_gpus=live)


def _whole_numbers(parts: Sequence[str]) -> list[int]:
    return [int(part) for part in parts] if all(part.strip().isdecimal() for part in parts) else []
