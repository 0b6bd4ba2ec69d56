"""What an engine says of itself: demand while traffic runs, loads and copies at its dispatcher, times, pushes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from placement.demand import Demand
from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract_demand import DemandOptions
from profiler.engine.contract_push import PushRequest
from tests.gpu.layouts import demand_of, whole_map
from tests.gpu.server import Engine
from tests.gpu.traffic import Routed

NEVER_STEPS = 1_000_000
"""A window so long that a recording has one."""


def record_demand(client: EngineClient, traffic: Callable[[], object], *, phase: str | None = None) -> Demand:
    """Record all of some traffic in one window, by home GPU where the engine knows it.

    Raises
    ------
    ValueError
        The engine routed nothing of that phase meanwhile.
    """
    client.start_demand(DemandOptions(window_steps=NEVER_STEPS))
    try:
        traffic()
    finally:
        client.stop_demand()
    windows = []
    while True:
        answer = client.demand()
        windows += answer.windows
        if not answer.remaining:
            break
    parts = [part.counts_LSE for window in windows for part in window.phases if phase in (None, part.phase)]
    if not parts:
        raise ValueError(f"nothing was routed while recording (phase {phase or 'any'}).")
    tokens_LSE = np.sum(parts, axis=0)
    sources = "measured" if tokens_LSE.shape[1] > 1 else "uniform"
    return Demand(tokens_LSE[None], sources, ("recorded",))


def difference(demand: Demand, routed: Routed) -> dict[str, int]:
    """Say how recorded demand differs from what the same requests say of themselves, in pairs of token and expert."""
    recorded_LSE = demand.tokens_WLSE.sum(axis=0)
    _layers, sources, experts = recorded_LSE.shape
    asked_LSE = demand_of(routed, experts=experts, gpus=sources).tokens_WLSE[0]
    return {
        "recorded_pairs": int(recorded_LSE.sum()),
        "requests_pairs": int(asked_LSE.sum()),
        "pairs_apart": int(np.abs(recorded_LSE - asked_LSE).sum()) // 2,
    }


@dataclass(frozen=True)
class Dispatched:
    """Counted at the dispatcher of every GPU.

    Attributes
    ----------
    tokens : int
        Tokens of all sources and layers.
    imbalance : float
        As the ruler defines it, over the slots that each GPU computed.
    local_gpu, copies_per_token : float or None
        Share of pairs on the token's own GPU, and other GPUs that a token went to per layer; None where every GPU
        sees every token.
    """

    tokens: int
    imbalance: float
    local_gpu: float | None
    copies_per_token: float | None


def count_dispatched(
    engine: Engine, traffic: Callable[[], object], *, phase: str, home_shares_S: Sequence[float] | None = None
) -> Dispatched:
    """Count all pairs of token and slot of one phase (``prefill``, ``decode``; ``any``) of some traffic.

    ``home_shares_S`` as in :func:`dispatched`.
    """
    engine.post("/probe", {"counts": phase})
    traffic()
    ranks = engine.post("/probe", {})["ranks"]
    engine.post("/probe", {"counts": ""})
    return dispatched(ranks, all_to_all=engine.setup.all_to_all, home_shares_S=home_shares_S)


def dispatched(
    ranks: list[dict[str, Any]], *, all_to_all: bool, home_shares_S: Sequence[float] | None = None
) -> Dispatched:
    """Sum up the probe's answer, one entry per GPU.

    With ``home_shares_S`` every GPU's own tokens are weighted as if so large a share of all had been its own: over a
    short time of mixed traffic GPUs happen to have more or fewer. Needs an all-to-all.
    """
    ordered = sorted(ranks, key=lambda rank: int(rank["rank"]))
    gpus = len(ordered)
    pairs_RLP = np.array([[layer["slots"] for layer in rank["layers"]] for rank in ordered], dtype=np.int64)
    tokens_R = np.array([sum(layer["tokens"] for layer in rank["layers"]) for rank in ordered], dtype=np.int64)
    weight_R = np.ones(gpus)
    if home_shares_S is not None:
        weight_R = np.asarray(home_shares_S) * tokens_R.sum() / np.maximum(tokens_R, 1)
    if all_to_all:
        pairs_LP = np.tensordot(weight_R, pairs_RLP, axes=1)  # each GPU counts its own tokens, wherever they go
        load_LG = pairs_LP.reshape(len(pairs_LP), gpus, -1).sum(axis=2)
    else:  # each GPU sees all tokens, but for steps in which it had none of its own: take the one that saw most
        pairs_LP = pairs_RLP[pairs_RLP.sum(axis=(1, 2)).argmax()]
        load_LG = pairs_LP.reshape(len(pairs_LP), gpus, -1).sum(axis=2)
    imbalance = float(load_LG.max(axis=1).sum() / load_LG.mean(axis=1).sum())
    if not all_to_all:
        return Dispatched(int(tokens_R.max()), imbalance, None, None)
    own_R, copies_R = (
        np.array([sum(layer[what] for layer in rank["layers"]) for rank in ordered]) for what in ("own_pairs", "copies")
    )
    own = float(weight_R @ own_R / pairs_LP.sum())
    return Dispatched(int(tokens_R.sum()), imbalance, own, float(weight_R @ copies_R / (weight_R @ tokens_R)))


@dataclass(frozen=True)
class StepTimes:
    """Times of steps in which every GPU had the same number of tokens.

    Attributes
    ----------
    steps : int
    step_ms, dispatch_ms, experts_ms, combine_ms : list of float
        For each step the slowest GPU's; for the parts summed over layers.
    moe_ms : list of float
        From the beginning of dispatch to the end of combine, summed over layers, the mean of GPUs: they begin and end
        a layer together, so that this holds every wait for the slowest.
    slowest_experts_ms : list of float
        In every layer the slowest GPU's experts, summed over layers.
    """

    steps: int
    step_ms: list[float]
    dispatch_ms: list[float]
    experts_ms: list[float]
    combine_ms: list[float]
    moe_ms: list[float] = field(default_factory=list)
    slowest_experts_ms: list[float] = field(default_factory=list)

    def __add__(self, other: StepTimes) -> StepTimes:
        both = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return StepTimes(*(one + two for one, two in both))

    def medians(self) -> dict[str, float]:
        """Return the median of each, rounded to a microsecond."""
        parts = ("step_ms", "dispatch_ms", "experts_ms", "combine_ms", "moe_ms", "slowest_experts_ms")
        return {part: round(statistics.median(getattr(self, part)), 3) for part in parts if getattr(self, part)}


NO_STEPS = StepTimes(0, [], [], [], [])


def time_steps(engine: Engine, traffic: Callable[[], object], *, phase: str) -> StepTimes:
    """Time the full steps of a phase while some traffic runs."""
    engine.post("/probe", {"times": True})
    traffic()
    ranks = engine.post("/probe", {})["ranks"]
    engine.post("/probe", {"times": False})
    return step_times(ranks, phase=phase)


def step_times(ranks: list[dict[str, Any]], *, phase: str) -> StepTimes:
    """Keep the steps of a phase in which every GPU had the largest number of tokens seen."""
    together = [steps for steps in zip(*(rank["steps"] for rank in ranks), strict=False)]
    of_phase = [steps for steps in together if all(step["phase"] == phase for step in steps)]
    most = max((step["tokens"] for steps in of_phase for step in steps), default=0)
    full = [steps for steps in of_phase if all(step["tokens"] == most for step in steps)]

    def slowest(part: str) -> list[float]:
        return [max(sum(step[part]) for step in steps) for steps in full if all(step[part] for step in steps)]

    whole = [max(step["step_ms"] for step in steps) for steps in full]
    seen = [steps for steps in full if all(step["combine_ms"] for step in steps)]
    moe = [statistics.fmean(sum(sum(step[part]) for part in _PARTS) for step in steps) for steps in seen]
    experts = [sum(map(max, zip(*(step["experts_ms"] for step in steps), strict=True))) for steps in seen]
    return StepTimes(
        len(full), whole, slowest("dispatch_ms"), slowest("experts_ms"), slowest("combine_ms"), moe, experts
    )


_PARTS = ("dispatch_ms", "experts_ms", "combine_ms")


@dataclass(frozen=True)
class BarePush:
    """One ``PUT /moeplan/placement``, without the checks that ``moeplan push`` makes before and after.

    Attributes
    ----------
    start_s, end_s : float
        ``time.monotonic`` around the request.
    on_ranks_s : float
        Seconds of all chunks on the slowest rank, pauses left out.
    chunk_s : list of float
    changed_slots, moved_slots, changed_bytes, moved_bytes : int
    """

    start_s: float
    end_s: float
    on_ranks_s: float
    chunk_s: list[float]
    changed_slots: int
    moved_slots: int
    changed_bytes: int
    moved_bytes: int


def push_bare(
    client: EngineClient,
    layout: Layout,
    *,
    dense_layers: int = 0,
    layers_per_chunk: int | None = None,
    pause_s: float = 0.0,
) -> BarePush:
    """Push a layout, that of the layers with experts where ``dense_layers`` without any come before them.

    Raises
    ------
    RuntimeError
        Not all of it was applied.
    """
    layout = whole_map(layout, dense_layers=dense_layers)
    request = PushRequest(layout.slot_to_expert_LP, layers_per_chunk=layers_per_chunk, pause_s=pause_s)
    start_s = time.monotonic()
    answer = client.put_placement(request)
    end_s = time.monotonic()
    if answer.status != "applied" or answer.layout_hash != layout.hash:
        raise RuntimeError(f"the push ended as {answer.status}: {answer.error or 'another layout runs'}")
    chunk_s = [chunk.seconds or 0.0 for chunk in answer.chunks]
    sums = {
        name: sum(getattr(chunk, name) for chunk in answer.chunks)
        for name in ("changed_slots", "moved_slots", "changed_bytes", "moved_bytes")
    }
    return BarePush(start_s=start_s, end_s=end_s, on_ranks_s=sum(chunk_s), chunk_s=chunk_s, **sums)
