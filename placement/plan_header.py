"""What a plan says about its making: recordings, model and options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from placement.dispatch import Dispatch
from placement.errors import BadPlan
from placement.problem import LocalScope, Objective

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
