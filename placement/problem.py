"""What is to be planned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption, BadTokens, LayoutMismatch, SlotCountMismatch, SourceCountMismatch
from placement.hardware import Sends
from placement.layout import Layout
from placement.slots import check_slots_per_gpu
from placement.step_time import Step
from placement.token_sample import TokenSample
from placement.topology import MAX_GPUS, Topology


class Objective(StrEnum):
    """What a plan is for. Later objectives are added here and in ``placement.solver``."""

    LOCALITY = "locality"
    BALANCE = "balance"
    TRAFFIC = "traffic"
    STEP_TIME = "step-time"


class LocalScope(StrEnum):
    """Where a token counts as served locally: its home GPU or its home node."""

    GPU = "gpu"
    NODE = "node"


@dataclass(frozen=True)
class Problem:
    """Demand, machine, slots, objective and limits; validated at birth, varied by ``dataclasses.replace``.

    Attributes
    ----------
    demand : Demand
        Windows the plan is made for; not empty.
    topology : Topology
    slots_per_gpu : int
    objective : Objective
    local_scope : LocalScope
        What ``locality`` maximises.
    max_imbalance : float
        Cap on the worst window's imbalance, >= 1. Where no layout reaches it, the smallest reachable one is
        found first, reported and used.
    dispatch : Dispatch
        The engine's rule; plans hold for this rule only.
    current : Layout or None
        The layout that runs now: ties go to the plan that moves fewer slots away from it.
    max_moved_slots : int or None
        Slots that may be filled from another GPU on the way to the plan, as :func:`placement.diff.diff` counts
        them; None for any number. Counted from ``current``, or without it from the trivial layout, with which an
        engine starts when it is given none.
    hedge : float
        Part of the local share, 0 up to but not 1, that may be given up for replica counts that keep GPUs even on
        traffic that was not planned for. Only ``locality`` hedges.
    least_local : float
        Local share that hedging keeps where the plan reaches it: a target.
    tokens : TokenSample or None
        Tokens one by one, from the same recordings as ``demand``, for objectives that ask which experts are needed
        together; None where only counts are known.
    step : Step or None
        Hardware, phase and size of the step whose time ``step-time`` minimises; that objective needs it.

    Raises
    ------
    EmptyProfile, SourceCountMismatch, SlotsBelowExperts, RedundancyTooHigh, BadOption, LayoutMismatch,
    SlotCountMismatch, BadTokens
    """

    demand: Demand
    topology: Topology
    slots_per_gpu: int
    objective: Objective = Objective.LOCALITY
    local_scope: LocalScope = LocalScope.GPU
    max_imbalance: float = 1.05
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC
    current: Layout | None = None
    max_moved_slots: int | None = None
    max_overflow: float | None = None
    capacity_factor: float = 1.25
    hedge: float = 0.0
    least_local: float = 0.0
    tokens: TokenSample | None = None
    step: Step | None = None

    def __post_init__(self) -> None:
        self.demand.require_not_empty()
        check_slots_per_gpu(experts=self.demand.experts, gpus=self.topology.gpus, slots_per_gpu=self.slots_per_gpu)
        if not 1 <= self.max_imbalance <= MAX_GPUS:
            raise BadOption(
                f"max_imbalance is {self.max_imbalance}; the smallest possible imbalance is 1, and "
                f"{self.topology.gpus} (everything on one GPU) limits nothing."
            )
        if self.max_moved_slots is not None and self.max_moved_slots < 0:
            raise BadOption(
                f"max_moved_slots is {self.max_moved_slots}; it is a number from 0 (nothing moves) upwards."
            )
        if not 0 < self.capacity_factor <= MAX_GPUS:
            raise BadOption(
                f"capacity_factor is {self.capacity_factor}; it must be a number above 0 and up to {MAX_GPUS}, 1.25 is "
                "usual."
            )
        if self.max_overflow is not None and not 0 <= self.max_overflow <= 1:
            raise BadOption(
                f"max_overflow is {self.max_overflow}; it is a share of the demand from 0 (no GPU above its capacity) "
                "to 1."
            )
        if not 0 <= self.hedge < 1:
            raise BadOption(
                f"hedge is {self.hedge}; it is a part of the local share from 0 (nothing is given up) up to but not 1, "
                "like 0.02."
            )
        sources = self.demand.tokens_WLSE.shape[2]
        if self.demand.sources == "measured" and sources != self.topology.gpus:
            raise SourceCountMismatch(
                f"demand was measured for {sources} source GPUs, the topology has {self.topology.gpus}; plan for "
                f"{sources} GPUs, or forget the sources to plan for uniform ones."
            )
        self._check_current()
        self._check_tokens()
        self._check_step()

    def _check_step(self) -> None:
        if self.objective is not Objective.STEP_TIME:
            return
        if self.step is None:
            raise BadOption("the objective step-time needs hardware: a profile, the model's shape and a phase.")
        if self.max_moved_slots is not None or self.max_overflow is not None:
            given = "max_moved_slots" if self.max_moved_slots is not None else "max_overflow"
            raise BadOption(f"the objective step-time takes no {given}; leave it out, or plan for locality or balance.")

    def _check_tokens(self) -> None:
        if self.tokens is None:
            return
        tokens, demand = self.tokens.tokens, self.demand
        if (tokens.layers, tokens.experts) != (demand.layers, demand.experts):
            raise BadTokens(
                f"the tokens are of {tokens.layers} layers x {tokens.experts} experts, the demand of {demand.layers} x "
                f"{demand.experts}."
            )
        if tokens.sources != demand.sources:
            raise BadTokens(f"the tokens have {tokens.sources} sources, the demand {demand.sources} ones.")
        if tokens.home_T is not None and int(tokens.home_T.max()) >= self.topology.gpus:
            token = int(tokens.home_T.argmax())
            raise BadTokens(
                f"token {token} lives on GPU {int(tokens.home_T[token])}; the topology has GPUs 0 to "
                f"{self.topology.gpus - 1}."
            )
        if int(tokens.window_T.max()) >= demand.windows:
            raise BadTokens(
                f"a token is in window {int(tokens.window_T.max())}; the demand has windows 0 to {demand.windows - 1}."
            )

    def _check_current(self) -> None:
        if self.current is None:
            return
        if (self.current.layers, self.current.experts) != (self.demand.layers, self.demand.experts):
            raise LayoutMismatch(
                f"the current layout has {self.current.layers} layers x {self.current.experts} experts, the demand "
                f"{self.demand.layers} x {self.demand.experts}."
            )
        if (self.current.gpus, self.current.slots_per_gpu) != (self.topology.gpus, self.slots_per_gpu):
            raise SlotCountMismatch(
                f"the current layout has {self.current.slots} slots on {self.current.gpus} GPUs, the plan "
                f"{self.slots_per_gpu * self.topology.gpus} on {self.topology.gpus}."
            )

    @property
    def counts_copies(self) -> bool:
        """Whether times are predicted from copies counted on ``tokens``: the kernel sends a token once per GPU."""
        if self.tokens is None or self.step is None or self.dispatch is Dispatch.EVEN:
            return False
        return self.step.hardware.all_to_all(self.step.phase).sends is Sends.PER_GPU

    @property
    def slots(self) -> int:
        return self.slots_per_gpu * self.topology.gpus
