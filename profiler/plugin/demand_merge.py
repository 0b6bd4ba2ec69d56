"""Windows of all ranks become one answer: sources side by side, sums checked."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.contract_demand import PHASES, DemandAnswer, DemandWindow, PhaseCounts
from profiler.plugin.orders import OrderRefused


def merge_ranks(parts: Sequence[dict[str, Any]], *, engine: str) -> DemandAnswer:
    """Build the answer of ``GET /moeplan/demand`` from what every rank handed over.

    Raises
    ------
    OrderRefused
        ``RANKS_DISAGREE`` when ranks hold different windows, ``ROUTING_NOT_SEEN`` when a layer's counts are not
        tokens x top-k: then the engine routed where the plugin does not look, and no figure may be used.
    """
    first = parts[0]
    if len({tuple((w["index"], w["first_step"], w["steps"]) for w in part["windows"]) for part in parts}) != 1:
        raise OrderRefused("the ranks closed different windows; stop and start anew.", code="RANKS_DISAGREE")
    windows = [_merge_window([part["windows"][i] for part in parts], parts) for i in range(len(first["windows"]))]
    for window in windows:
        _check_sums(window, moe_layers=first["moe_layers"], top_k=first["top_k"])
    return DemandAnswer(
        engine=engine,
        simulated=False,
        recording=first["recording"],
        recording_id=first["recording_id"],
        steps=first["steps"],
        layers=first["layers"],
        sources=first["sources"],
        experts=first["experts"],
        windows=tuple(windows),
        remaining=first["remaining"],
        dropped_windows=first["dropped_windows"],
    )


def _merge_window(rank_windows: Sequence[dict[str, Any]], parts: Sequence[dict[str, Any]]) -> DemandWindow:
    first = rank_windows[0]
    return DemandWindow(
        index=first["index"],
        first_step=first["first_step"],
        steps=first["steps"],
        seconds=first["seconds"],
        generation=first["generation"],
        last_generation=max(window["last_generation"] for window in rank_windows),
        unused_tokens=sum(window["unused_tokens"] for window in rank_windows),
        phases=tuple(
            phase for number in range(len(PHASES)) if (phase := _merge_phase(number, rank_windows, parts)) is not None
        ),
    )


def _merge_phase(
    number: int, rank_windows: Sequence[dict[str, Any]], parts: Sequence[dict[str, Any]]
) -> PhaseCounts | None:
    shape = parts[0]
    counts_LSE = np.zeros((shape["layers"], shape["sources"], shape["experts"]), dtype=np.int64)
    for window, part in zip(rank_windows, parts, strict=True):
        counts_LSE[:, part["source"]] += _rank_counts(window, part)[number]
    tokens = sum(window["tokens"][number] for window in rank_windows)
    if tokens == 0:
        return None
    steps = len({step for window in rank_windows for step in window["phase_steps"][number]})
    return PhaseCounts(phase=PHASES[number], steps=steps, tokens=tokens, counts_LSE=counts_LSE)


def _rank_counts(window: dict[str, Any], part: dict[str, Any]) -> npt.NDArray[np.int64]:
    raw = zlib.decompress(base64.b64decode(window["counts"]))
    return np.frombuffer(raw, dtype="<i8").reshape(len(PHASES), part["layers"], part["experts"])


def _check_sums(window: DemandWindow, *, moe_layers: Sequence[int], top_k: int) -> None:
    for phase in window.phases:
        expected = phase.tokens * top_k
        found_L = phase.counts_LSE.sum(axis=(1, 2))
        for layer in moe_layers:
            if top_k and int(found_L[layer]) != expected:
                raise OrderRefused(
                    f"window {window.index}, {phase.phase}: layer {layer} counts {int(found_L[layer])} routed tokens "
                    f"where {phase.tokens} tokens x top-{top_k} are {expected}; the engine routes this layer where "
                    "the plugin does not look.",
                    code="ROUTING_NOT_SEEN",
                )
