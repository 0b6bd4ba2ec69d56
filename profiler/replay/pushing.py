"""Pushes: checked as a whole, then applied chunk by chunk with serving in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from profiler.engine.contract import REPLAY_ENGINE
from profiler.engine.contract_push import ChunkReport, PushAnswer, PushRequest
from profiler.engine.json_fields import ContractViolation
from profiler.engine.map_rules import changed_layers, check_map, chunks_of_layers, layout_hash, slot_changes

if TYPE_CHECKING:
    from profiler.replay.engine import ReplayEngine
    from profiler.replay.loop import StepLoop


class ChunkFailed(Exception):
    """A chunk of a push could not be applied; all its layers are as before."""


class Restarted(Exception):
    """The engine ended in the middle of a push and is up again, with its first layout."""


class AnswerLost(Exception):
    """Nobody hears how the push ended."""


@dataclass(frozen=True, eq=False)
class PushPlan:
    """A push that was found valid.

    Attributes
    ----------
    request : PushRequest
    previous_hash : str
        The engine's layout before.
    chunks : tuple of ChunkReport
        Layers that change, in the chunks they are applied in, each ``planned``.
    """

    request: PushRequest
    previous_hash: str
    chunks: tuple[ChunkReport, ...]


def plan_push(
    request: PushRequest, current_LP: npt.NDArray[np.int32], *, experts: int, gpus: int, expert_bytes: int
) -> PushPlan:
    """Check a request against the engine's layout and cut it into chunks.

    Raises
    ------
    ContractViolation
        The map's own faults (:func:`profiler.engine.map_rules.check_map`), or ``LAYOUT_HASH_MISMATCH``.
    """
    layers, slots = current_LP.shape
    check_map(request.map_LP, layers=layers, slots=slots, experts=experts)
    current_hash = layout_hash(current_LP)
    if request.expected_layout_hash not in (None, current_hash):
        raise ContractViolation(
            f"this engine runs layout {current_hash}, not the expected {request.expected_layout_hash}.",
            code="LAYOUT_HASH_MISMATCH",
        )
    chosen = tuple(range(layers)) if request.layers is None else request.layers
    changing = changed_layers(current_LP, request.map_LP, among=chosen)
    reports = []
    for chunk in chunks_of_layers(changing, layers_per_chunk=request.layers_per_chunk):
        changes = slot_changes(current_LP, request.map_LP, layers=chunk, gpus=gpus)
        reports.append(
            ChunkReport(
                layers=chunk,
                status="planned",
                seconds=None,
                changed_slots=changes.changed_slots,
                changed_bytes=changes.changed_slots * expert_bytes,
                moved_slots=changes.moved_slots,
                moved_bytes=changes.moved_slots * expert_bytes,
            )
        )
    return PushPlan(request, current_hash, tuple(reports))


def carry_out(loop: StepLoop, request: PushRequest) -> PushAnswer:
    """Push a layout into a running replay engine; serving goes on between the chunks.

    Raises
    ------
    ContractViolation
        As :meth:`profiler.replay.engine.ReplayEngine.begin_push`; nothing has moved then.
    AnswerLost
        As asked for by ``Faults``.
    """
    plan = loop.call(lambda engine: engine.begin_push(request))
    if request.dry_run:
        return _answer(loop, plan, plan.chunks, error="")
    reports: list[ChunkReport] = []
    error = ""
    status = "cut off"
    try:
        for number, chunk in enumerate(plan.chunks, start=1):
            if number > 1 and loop.stopping.wait(request.pause_s):
                error = "the engine is being stopped"
                break
            try:
                seconds = loop.call(_apply(plan, number))
            except ChunkFailed as failure:
                error = str(failure)
                reports.append(replace(chunk, status="failed"))
                break
            reports.append(replace(chunk, status="applied", seconds=seconds))
        status = "partial" if error else "applied"
    except Restarted:
        raise AnswerLost from None
    finally:
        loop.call(lambda engine: engine.end_push(status))
    skipped = [replace(chunk, status="skipped") for chunk in plan.chunks[len(reports) :]]
    answer = _answer(loop, plan, (*reports, *skipped), error=error)
    faults, pushes = loop.call(lambda engine: (engine.options.faults, engine.push_log.pushes))
    if faults.end_after_push and status == "applied":
        loop.end_soon()
    if faults.lose_answer == pushes:
        raise AnswerLost
    return answer


def _apply(plan: PushPlan, number: int) -> Callable[[ReplayEngine], float]:
    return lambda engine: engine.apply_chunk(plan, number)


def _answer(loop: StepLoop, plan: PushPlan, chunks: tuple[ChunkReport, ...], *, error: str) -> PushAnswer:
    placement = loop.call(lambda engine: engine.placement(checksums=False))
    new_layers = [layer for chunk in chunks if chunk.status == "applied" for layer in chunk.layers]
    old_layers = [layer for chunk in chunks if chunk.status != "applied" for layer in chunk.layers]
    status = "dry_run" if plan.request.dry_run else ("partial" if error else "applied")
    return PushAnswer(
        engine=REPLAY_ENGINE,
        simulated=True,
        status=status,
        previous_layout_hash=plan.previous_hash,
        layout_hash=placement.layout_hash,
        generation=placement.generation,
        chunks=chunks,
        new_layers=tuple(new_layers),
        old_layers=tuple(old_layers),
        error=error,
    )
