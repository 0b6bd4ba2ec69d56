"""What a plan says about its making: recordings, model and options."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from placement.dispatch import Dispatch
from placement.errors import BadPlan
from placement.problem import LocalScope, Objective
from placement.topology import MAX_GPUS

SlotsFrom = Literal["slots-per-gpu", "redundant", "fit", "smallest"]


@dataclass(frozen=True)
class PlanInput:
    """One recording the plan was made from: its short name and the SHA-256 of its bytes (64 hex digits)."""

    name: str
    sha256: str

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise BadPlan(f"input {self.name!r} has the hash {self.sha256!r}; a SHA-256 is 64 hex digits.")


@dataclass(frozen=True)
class PlannedModel:
    """The model a plan is for.

    Attributes
    ----------
    name : str
        Empty where the recording does not say.
    layers, experts : int
        Decoder layers (dense ones included) and routed experts per MoE layer.
    top_k : int or None
        Experts per token, None where the recording does not say.
    moe_layers : tuple of int
        Decoder layers with experts, ascending.
    """

    name: str
    layers: int
    experts: int
    top_k: int | None
    moe_layers: tuple[int, ...]


@dataclass(frozen=True)
class PlanOptions:
    """What was asked for.

    Attributes
    ----------
    objective, local_scope, dispatch
        As in :class:`placement.problem.Problem`.
    local_target : float
        Share to be served locally, 0..1.
    max_imbalance, max_imbalance_used : float
        The cap asked for, and the one used: the same, or the smallest reachable one where that is out of reach.
    window_by : str
        How the recording was cut into windows.
    holdout_share : float
        Share of the recording kept back to judge on, 0 where none was.
    capacity_factor : float
        Capacity of a GPU as a multiple of the mean load.
    slots_from : {"slots-per-gpu", "redundant", "fit", "smallest"}
        Which option set the slots per GPU.
    seed : int
    time_limit_s : float or None
    max_moved_slots : int or None
        Slots that were allowed to move, None for any number.
    sample_tokens : int or None
        Tokens that copies were counted for, None for all of the recording.
    max_overflow : float or None
        Cap on the overflow share of every window at ``capacity_factor``, None for no cap.
    hardware : str or None
        Name of the hardware profile that times were predicted with.
    hedge : float
        Part of the local share that could be given up for balance on other traffic.
    """

    objective: Objective
    local_scope: LocalScope
    dispatch: Dispatch
    max_imbalance: float
    max_imbalance_used: float
    window_by: str
    slots_from: SlotsFrom
    seed: int
    local_target: float = 0.6
    holdout_share: float = 0.0
    capacity_factor: float = 1.25
    time_limit_s: float | None = None
    max_moved_slots: int | None = None
    sample_tokens: int | None = None
    max_overflow: float | None = None
    hardware: str | None = None
    hedge: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no plan is made with: a file may have been changed by hand."""
        share, positive, counting = (0.0, 1.0), (0.0, math.inf), (0, 2**63 - 1)
        limits: dict[str, tuple[float, float]] = {
            "local_target": share,
            "max_imbalance": (1, MAX_GPUS),
            "max_imbalance_used": (1, MAX_GPUS),
            "holdout_share": share,
            "capacity_factor": (0, MAX_GPUS),
            "seed": (0, 2**31 - 1),
            "time_limit_s": positive,
            "max_moved_slots": counting,
            "sample_tokens": (1, 2**63 - 1),
            "max_overflow": share,
            "hedge": share,
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise BadPlan(f"options.{name} is {value}; it is a number from {least:g} to {most:g}.")
        if self.capacity_factor == 0 or self.time_limit_s == 0:
            name = "capacity_factor" if self.capacity_factor == 0 else "time_limit_s"
            raise BadPlan(f"options.{name} is 0; it is a number above 0.")
