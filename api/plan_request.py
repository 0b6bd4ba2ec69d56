"""What is asked of a plan: the same on the command line and over REST."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from api.workers import Workers
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.hardware import HardwareProfile, Phase
from placement.plan_header import SlotsFrom
from placement.problem import LocalScope, Objective
from placement.topology import MAX_GPUS

MAX_SEED = 2**31 - 1
"""CP-SAT takes 32 bits with a sign."""

MAX_THREADS = 1024
MAX_EXPERT_BYTES = 2**50
MAX_MOVED_BYTES = 2**62


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What is asked of a plan; see the options of ``moeplan plan`` for each field."""

    gpus: int
    nodes: int = 1
    topology_file: Path | None = None
    slots_per_gpu: int | None = None
    redundant: int | None = None
    fit: bool = False
    local_target: float | None = None
    local_scope: LocalScope = LocalScope.GPU
    objective: Objective = Objective.LOCALITY
    max_imbalance: float = 1.05
    hedge: float | None = None
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC
    window_by: str = "file"
    sources: str = "auto"
    phase: Literal["prefill", "decode"] | None = None
    holdout: float | None = None
    test: tuple[Path, ...] = ()
    current: Path | None = None
    capacity_factor: float = 1.25
    sample_tokens: int | None = None
    expert_groups: int | None = None
    expert_bytes: int | None = None
    draft_experts: int | None = None
    draft_redundant: int | None = None
    live_gpus: str | None = None
    time_limit_s: float | None = None
    seed: int = 0
    threads: int = 1
    workers: Workers = 1
    max_moved_slots: int | None = None
    max_moved_bytes: int | None = None
    pareto: bool = False
    max_overflow: float | None = None
    hardware: str | HardwareProfile | None = None
    step_phase: Phase | None = None
    step_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.local_target is not None and not 0 < self.local_target <= 1:
            raise BadOption(f"the local target is {self.local_target}; it is a share above 0 and up to 1, like 0.6.")
        if not 0 < self.capacity_factor <= MAX_GPUS:
            raise BadOption(
                f"the capacity factor is {self.capacity_factor}; it is above 0 and up to {MAX_GPUS}, like 1.25."
            )
        if not 1 <= self.max_imbalance <= MAX_GPUS:
            raise BadOption(
                f"--max-imbalance is {self.max_imbalance}; the smallest possible imbalance is 1, and the number of "
                "GPUs (everything on one) limits nothing."
            )
        if self.max_overflow is not None and not 0 <= self.max_overflow <= 1:
            raise BadOption(
                f"--max-overflow is {self.max_overflow}; it is a share of the demand from 0 (no GPU above its "
                "capacity) to 1."
            )
        if self.time_limit_s is not None and not 0 < self.time_limit_s < math.inf:
            raise BadOption(
                f"the time limit is {self.time_limit_s} s; it is a number of seconds above 0; leave it out for none."
            )
        if self.sample_tokens is not None and self.sample_tokens < 1:
            raise BadOption(f"--sample-tokens is {self.sample_tokens}; it is a number from 1 upwards.")
        if not 1 <= self.threads <= MAX_THREADS:
            raise BadOption(f"{self.threads} threads were asked for; 1 to {MAX_THREADS} can be used.")
        if not 0 <= self.seed <= MAX_SEED:
            raise BadOption(f"the seed is {self.seed}; it is a whole number from 0 to {MAX_SEED}.")
        if self.expert_groups is not None and self.expert_groups < 1:
            raise BadOption(f"--expert-groups is {self.expert_groups}; a model has at least 1 group.")
        if self.expert_bytes is not None and not 1 <= self.expert_bytes <= MAX_EXPERT_BYTES:
            raise BadOption(f"--expert-bytes is {self.expert_bytes}; it is a number from 1 to {MAX_EXPERT_BYTES}.")
        self._check_moves()
        self._check_step_time()
        if self.test and self.holdout is not None:
            raise BadOption("--holdout and --test exclude each other; give one.")

    def _check_step_time(self) -> None:
        if self.objective is Objective.STEP_TIME and self.hardware is None:
            raise BadOption(
                "--objective step-time needs --hardware (a profile like h200) and --model, to predict times with."
            )
        if self.objective is Objective.STEP_TIME and (self.pareto or self.most_moved_slots is not None):
            raise BadOption("--objective step-time takes no limit on moves and no --pareto; leave them out.")

    def _check_moves(self) -> None:
        for option, most in (("--max-moved-slots", self.max_moved_slots), ("--max-moved-bytes", self.max_moved_bytes)):
            if most is not None and not 0 <= most <= MAX_MOVED_BYTES:
                raise BadOption(f"{option} is {most}; it is a number from 0 (nothing moves) to {MAX_MOVED_BYTES}.")
        if self.max_moved_slots is not None and self.max_moved_bytes is not None:
            raise BadOption("--max-moved-slots and --max-moved-bytes exclude each other; give one.")
        if self.max_moved_bytes is not None and self.expert_bytes is None:
            raise BadOption(
                "--max-moved-bytes needs --expert-bytes, the bytes of one expert's weights in one layer; or give "
                "--max-moved-slots."
            )
        limited = self.most_moved_slots is not None
        if self.fit and (limited or self.pareto):
            given = "a limit on moves" if limited else "--pareto"
            raise BadOption(
                f"--fit and {given} exclude each other: an engine that gets another number of slots starts anew; give "
                "--slots-per-gpu or --redundant."
            )

    @property
    def most_moved_slots(self) -> int | None:
        """Slots that may move, None for any number."""
        if self.max_moved_bytes is not None and self.expert_bytes is not None:
            return self.max_moved_bytes // self.expert_bytes
        return self.max_moved_slots

    @property
    def slots_from(self) -> SlotsFrom:
        if self.fit:
            return "fit"
        if self.redundant is not None:
            return "redundant"
        return "smallest" if self.slots_per_gpu is None else "slots-per-gpu"
