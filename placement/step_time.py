"""What is asked of a predicted step, and what comes out: values that ruler, solver and plans share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from placement.errors import BadOption
from placement.hardware import HardwareProfile, Phase
from placement.model_shape import ExpertShape

USUAL_TOKENS = {"prefill": 8192, "decode": 128}
"""Tokens per GPU and step at which the all-to-all of the profiles was measured."""

MAX_TOKENS_PER_GPU = 2**24

Basis = Literal["counts", "tokens"]


@dataclass(frozen=True)
class Step:
    """One step of an engine, as far as its MoE layers go.

    Attributes
    ----------
    hardware : HardwareProfile
    phase : {"prefill", "decode"}
    expert : ExpertShape
    top_k : int
        Experts of a token.
    tokens_per_gpu : int
        Tokens of a step whose home is one GPU, on average over GPUs.

    Raises
    ------
    BadOption
    """

    hardware: HardwareProfile
    phase: Phase
    expert: ExpertShape
    top_k: int
    tokens_per_gpu: int

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise BadOption(f"top-k is {self.top_k}; a token has at least 1 expert.")
        if not 1 <= self.tokens_per_gpu <= MAX_TOKENS_PER_GPU:
            raise BadOption(
                f"a step has {self.tokens_per_gpu} tokens per GPU; 1 to {MAX_TOKENS_PER_GPU} can be planned for, "
                f"{USUAL_TOKENS[self.phase]} is usual in {self.phase}."
            )


@dataclass(frozen=True)
class MoeLayerTime:
    """Predicted time of a MoE layer, a mean over layers and, by their tokens, over windows.

    Attributes
    ----------
    moe_layer_s : float
        Slowest GPU's experts plus slowest GPU's all-to-all.
    expert_s : float
        The experts' part.
    all_to_all_s : float or None
        Dispatch and combine; None without an all-to-all backend, where every layout has the same communication.
    worst_window_s : float
        ``moe_layer_s`` of the slowest window.
    hardware, phase, tokens_per_gpu
        What it was predicted for.
    basis : {"counts", "tokens"}
        Where copies per token come from: expected from counts, as if experts were chosen independently of each other,
        or counted on a token trace. Active experts are expected from counts in both.
    """

    moe_layer_s: float
    expert_s: float
    all_to_all_s: float | None
    worst_window_s: float
    hardware: str
    phase: Phase
    tokens_per_gpu: int
    basis: Basis
