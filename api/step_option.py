"""What predicted times are asked for: options of ``plan``, ``compare``, ``evaluate`` and ``size``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from placement.errors import BadOption
from placement.hardware import HardwareProfile, Phase
from placement.step_time import USUAL_TOKENS, Step
from profiler.hardware import read_hardware
from profiler.model_file import model_names
from profiler.readers.options import ReadOptions


class AskedForTimes(Protocol):
    """The options; ``phase`` is that of the traffic, which times are predicted for unless ``step_phase`` is given.

    ``hardware`` is a profile, or the name or file of one.
    """

    @property
    def hardware(self) -> str | HardwareProfile | None: ...
    @property
    def step_phase(self) -> Phase | None: ...
    @property
    def step_tokens(self) -> int | None: ...
    @property
    def phase(self) -> Phase | None: ...


@dataclass(frozen=True, kw_only=True)
class TimeOptions:
    """Those options alone."""

    hardware: str | None = None
    step_phase: Phase | None = None
    step_tokens: int | None = None
    phase: Phase | None = None


def step_of(request: AskedForTimes, read: ReadOptions) -> Step | None:
    """Return the step that times are predicted for, None without hardware."""
    if request.hardware is None:
        if request.step_phase is not None or request.step_tokens is not None:
            raise BadOption("--step-phase and --step-tokens need --hardware, the profile to predict times with.")
        return None
    if read.model is None:
        raise BadOption(
            "--hardware needs --model: the size of an expert and top-k, from a config.json or one of "
            f"{', '.join(model_names())}."
        )
    phase: Phase = request.step_phase or request.phase or "prefill"
    return Step(
        hardware=read_hardware(request.hardware) if isinstance(request.hardware, str) else request.hardware,
        phase=phase,
        expert=read.model.expert,
        top_k=read.model.top_k,
        tokens_per_gpu=USUAL_TOKENS[phase] if request.step_tokens is None else request.step_tokens,
    )
