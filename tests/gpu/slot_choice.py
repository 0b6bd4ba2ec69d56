"""How many slots serving is measured with: the fewest for an own-GPU share, and those with the least step time."""

from __future__ import annotations

import math
from collections.abc import Mapping

LOCAL_TARGET = 0.6
STEPS = (1.0, 1.125, 1.25, 1.5, 1.75, 2.0)
"""Slots over experts that are tried for step time: up to twice the weights."""
WORTH = 0.01
"""More slots are taken only for a step time so much shorter: every slot costs cache."""


def slots_to_try(*, experts: int, gpus: int) -> list[int]:
    """Return numbers of slots per layer, over all GPUs, ascending."""
    fewest = math.ceil(experts / gpus)
    per_gpu = {min(experts, math.ceil(fewest * step)) for step in STEPS}
    return [each * gpus for each in sorted(per_gpu)]


def choose_slots(moe_layer_s: Mapping[int, float]) -> int | None:
    """Return the smallest number of slots whose predicted time of a MoE layer is within :data:`WORTH` of the least.

    None where no plan was made.
    """
    if not moe_layer_s:
        return None
    least = min(moe_layer_s.values())
    return min(slots for slots, seconds in moe_layer_s.items() if seconds <= (1 + WORTH) * least)
