"""What a replay engine is to be: the options of ``moeplan replay``."""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from placement.errors import BadOption, LayoutMismatch, SlotCountMismatch
from placement.layout import Layout
from placement.slots import check_slots_per_gpu
from placement.topology import Topology
from profiler.errors import DispatchCombo
from profiler.replay.traffic import Homes
from profiler.replay.weights import TENSORS

DispatchAlgorithm = Literal["dynamic", "static"]

REPLAYED_VERSION = "0.5.23"
"""The SGLang whose rules the replay engine follows."""

DUMP_DIR_VARIABLE = "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR"


@dataclass(frozen=True)
class Faults:
    """What goes wrong on purpose, so that clients can be tried.

    Attributes
    ----------
    fail_chunk : int or None
        The first push that gets there fails at its chunk of this number, counted from 1; later ones pass.
    left_behind : tuple of str
        Tensors (:data:`profiler.replay.weights.TENSORS`) that pushes leave where they are although the map changes.
    latency_s : float
        Added to every answer.
    lose_answer : int or None
        The answer of the push of this number, counted from 1, never arrives, although the push is carried out.
    restart_chunk : int or None
        Once, before the chunk of this number, the engine ends and comes up again as it was started: with its first
        layout, another ``boot_id`` and nobody's push.
    odd_rank : int or None
        From the first applied chunk on, this rank says that it runs another layout.
    end_after_push : bool
        The engine stops for good when the first push has been applied; the push is still answered.
    """

    fail_chunk: int | None = None
    left_behind: tuple[str, ...] = ()
    latency_s: float = 0.0
    lose_answer: int | None = None
    restart_chunk: int | None = None
    odd_rank: int | None = None
    end_after_push: bool = False

    def __post_init__(self) -> None:
        for name, counted in (("fail_chunk", "chunks"), ("restart_chunk", "chunks"), ("lose_answer", "pushes")):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise BadOption(f"{name} is {number}; {counted} are counted from 1.")
        if self.odd_rank is not None and self.odd_rank < 0:
            raise BadOption(f"odd_rank is {self.odd_rank}; ranks are counted from 0.")
        unknown = [tensor for tensor in self.left_behind if tensor not in TENSORS]
        if unknown:
            raise BadOption(f"left_behind names {unknown[0]!r}; the replay has the tensors {', '.join(TENSORS)}.")
        if self.latency_s < 0:
            raise BadOption(f"latency_s is {self.latency_s}; it must be at least 0.")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Options of a replay engine.

    Attributes
    ----------
    gpus, nodes : int
        EP ranks, each also a data-parallel rank that tokens live on, and the nodes they are on.
    slots_per_gpu : int
    dispatch : {"dynamic", "static"} or None
        ``--ep-dispatch-algorithm``. None takes expert ids for slots, as SGLang does when started without one.
    a2a : str
        ``--moe-a2a-backend``; ``none`` for the path on which every rank sees every token.
    layout : Layout or None
        Layout at start; None is SGLang's ``trivial`` one: slot ``p`` holds expert ``p`` modulo the experts.
    homes : {"measured", "round-robin", "domain"} or None
        See :func:`profiler.replay.traffic.assign_homes`.
    seed : int
        Of the random picks of ``dynamic`` dispatch.
    steps_per_s : float or None
        Speed of the clock; None is as fast as possible, 0 stands still until ``POST /moeplan/replay/steps``.
    passes : int or None
        How often the trace is served; None is for ever.
    prefill_tokens, running_per_gpu : int
        See :class:`profiler.replay.batching.ContinuousBatching`.
    expert_bytes : int
        Bytes of one expert, for the figures of pushes.
    api_key, admin_key : str or None
        SGLang's ``--api-key`` and ``--admin-api-key``.
    recorder : bool
        Whether SGLang's own recorder is there (``--expert-distribution-recorder-mode stat``).
    recorder_ring_steps : int
        ``--expert-distribution-recorder-buffer-size``.
    routed_experts : bool
        Whether requests that ask for it get their routed experts (``--enable-return-routed-experts``).
    dump_dir : Path or None
        Where the recorder's dumps go; None is ``SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR``, or else the
        system's folder for temporary files.
    faults : Faults
    """

    gpus: int
    slots_per_gpu: int
    nodes: int = 1
    dispatch: DispatchAlgorithm | None = "dynamic"
    a2a: str = "deepep"
    layout: Layout | None = None
    homes: Homes | None = None
    seed: int = 0
    steps_per_s: float | None = 50.0
    passes: int | None = None
    prefill_tokens: int = 2048
    running_per_gpu: int = 32
    expert_bytes: int = 0
    api_key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)
    recorder: bool = True
    recorder_ring_steps: int = 1000
    routed_experts: bool = True
    dump_dir: Path | None = None
    faults: Faults = Faults()

    def __post_init__(self) -> None:
        Topology(self.gpus, self.nodes)
        for name in ("slots_per_gpu", "prefill_tokens", "running_per_gpu", "recorder_ring_steps"):
            if getattr(self, name) < 1:
                raise BadOption(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.steps_per_s is not None and not 0 <= self.steps_per_s < math.inf:
            raise BadOption(f"steps_per_s is {self.steps_per_s}; it must be a finite number of at least 0.")
        if self.seed < 0:
            raise BadOption(f"seed is {self.seed}; it must be at least 0.")
        if self.passes is not None and self.passes < 1:
            raise BadOption(f"passes is {self.passes}; it must be at least 1.")
        if self.dispatch not in ("dynamic", "static", None):
            raise BadOption(f"dispatch is {self.dispatch!r}; it must be dynamic, static or none at all.")
        if self.dispatch == "static" and self.a2a == "none":
            raise DispatchCombo(
                "static dispatch without an all-to-all backend: SGLang refuses to start so, because every rank would "
                "pick replicas by another table. Use dynamic."
            )
        if "" in (self.api_key, self.admin_key):
            raise BadOption("a key is empty; leave it out for an open engine.")

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes

    def check_against(self, *, layers: int, experts: int) -> None:
        """Refuse options that do not fit the trace.

        Raises
        ------
        SlotsBelowExperts, RedundancyTooHigh, SlotCountMismatch, LayoutMismatch
        """
        check_slots_per_gpu(experts=experts, gpus=self.gpus, slots_per_gpu=self.slots_per_gpu)
        if self.layout is None:
            return
        if (self.layout.layers, self.layout.experts, self.layout.gpus) != (layers, experts, self.gpus):
            raise LayoutMismatch(
                f"the layout is for {self.layout.layers} layers, {self.layout.experts} experts and "
                f"{self.layout.gpus} GPUs; the replay has {layers} layers, {experts} experts and {self.gpus} GPUs."
            )
        if self.layout.slots_per_gpu != self.slots_per_gpu:
            raise SlotCountMismatch(
                f"the layout has {self.layout.slots_per_gpu} slots per GPU; the replay has {self.slots_per_gpu}."
            )

    def dump_folder(self) -> Path:
        """Return the folder for dumps, as SGLang chooses it."""
        return self.dump_dir or Path(os.environ.get(DUMP_DIR_VARIABLE) or tempfile.gettempdir())


class ReplayKeywords(TypedDict, total=False):
    """The optional fields of :class:`ReplayOptions`, for functions that take them as keywords."""

    nodes: int
    dispatch: DispatchAlgorithm | None
    a2a: str
    layout: Layout | None
    homes: Homes | None
    seed: int
    steps_per_s: float | None
    passes: int | None
    prefill_tokens: int
    running_per_gpu: int
    expert_bytes: int
    api_key: str | None
    admin_key: str | None
    recorder: bool
    recorder_ring_steps: int
    routed_experts: bool
    dump_dir: Path | None
    faults: Faults
