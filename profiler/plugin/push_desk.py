"""HTTP side of a push: one at a time, checked on all ranks, then chunk by chunk with the engine serving in between."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from profiler.engine.contract_push import ChunkReport, PushAnswer, PushRequest
from profiler.plugin.carrier import MOVE_TIMEOUT_S, RankCarrier
from profiler.plugin.orders import OrderRefused, first_refusal

ENGINE = "sglang"
"""``engine`` of every answer of ours."""


class PushDesk:
    """Takes pushes of this HTTP process."""

    def __init__(self, carrier: RankCarrier) -> None:
        self._carrier = carrier
        self._busy = False

    async def push(self, request: PushRequest) -> PushAnswer:
        """Carry a push out, or plan it when it is a dry run.

        Raises
        ------
        OrderRefused
            When it was refused (nothing moved) or the ranks stopped answering.
        """
        if self._busy:
            raise OrderRefused(
                "another push is under way; wait for it and read the layout anew.", code="PUSH_IN_PROGRESS"
            )
        self._busy = True
        try:
            return await self._push(request)
        finally:
            self._busy = False

    async def _push(self, request: PushRequest) -> PushAnswer:
        push_id = uuid.uuid4().hex
        placements = await self._carrier.order("placement")
        plans = await self._carrier.order(
            "push_open",
            push_id=push_id,
            map=request.map_LP.tolist(),
            layers=None if request.layers is None else list(request.layers),
            layers_per_chunk=request.layers_per_chunk,
            expected_layout_hash=request.expected_layout_hash,
            dry_run=request.dry_run,
        )
        plan, expert_bytes = plans[0], int(placements[0]["expert_bytes"])
        if request.dry_run or not plan["chunks"]:
            return _unmoved(plan, expert_bytes, dry_run=request.dry_run)
        error = ""
        seconds: list[float] = []
        try:
            for index in range(len(plan["chunks"])):
                if index and request.pause_s:
                    await asyncio.sleep(request.pause_s)
                answers = await self._carrier.answers(
                    "push_chunk", push_id=push_id, index=index, timeout_s=MOVE_TIMEOUT_S
                )
                refusal = first_refusal(answers)
                if refusal is not None:
                    error = f"{refusal.code}: {refusal.detail}"
                    break
                seconds.append(max(float(answer.result["seconds"]) for answer in answers))
        finally:
            ends = await self._carrier.order("push_close", push_id=push_id)
        return _moved(plan, ends, seconds, error, expert_bytes)


def _unmoved(plan: dict[str, Any], expert_bytes: int, *, dry_run: bool) -> PushAnswer:
    layers = tuple(layer for chunk in plan["chunks"] for layer in chunk["layers"])
    return PushAnswer(
        engine=ENGINE,
        simulated=False,
        status="dry_run" if dry_run else "applied",
        previous_layout_hash=plan["previous_layout_hash"],
        layout_hash=plan["previous_layout_hash"],
        generation=plan["generation"],
        chunks=tuple(_report(chunk, "planned", None, expert_bytes) for chunk in plan["chunks"]),
        new_layers=(),
        old_layers=layers,
    )


def _moved(
    plan: dict[str, Any], ends: list[dict[str, Any]], seconds: list[float], error: str, expert_bytes: int
) -> PushAnswer:
    applied = set.intersection(*(set(end["applied_layers"]) for end in ends))
    layers = [layer for chunk in plan["chunks"] for layer in chunk["layers"]]
    reports = []
    for index, chunk in enumerate(plan["chunks"]):
        if index < len(seconds):
            reports.append(_report(chunk, "applied", seconds[index], expert_bytes))
        else:
            reports.append(_report(chunk, "failed" if index == len(seconds) else "skipped", None, expert_bytes))
    return PushAnswer(
        engine=ENGINE,
        simulated=False,
        status="partial" if error else "applied",
        previous_layout_hash=plan["previous_layout_hash"],
        layout_hash=ends[0]["layout_hash"],
        generation=ends[0]["generation"],
        chunks=tuple(reports),
        new_layers=tuple(layer for layer in layers if layer in applied),
        old_layers=tuple(layer for layer in layers if layer not in applied),
        error=error,
    )


def _report(chunk: dict[str, Any], status: str, seconds: float | None, expert_bytes: int) -> ChunkReport:
    return ChunkReport(
        layers=tuple(chunk["layers"]),
        status=status,
        seconds=seconds,
        changed_slots=chunk["changed_slots"],
        changed_bytes=chunk["changed_slots"] * expert_bytes,
        moved_slots=chunk["moved_slots"],
        moved_bytes=chunk["moved_slots"] * expert_bytes,
    )
