"""HTTP side of demand: one recording at a time, its lease, and the clock of windows that are given in seconds."""

from __future__ import annotations

import asyncio
import logging
import uuid

from profiler.engine.contract_demand import DemandAnswer, DemandOptions, DemandState
from profiler.plugin.carrier import RankCarrier
from profiler.plugin.demand_merge import merge_ranks
from profiler.plugin.orders import OrderRefused
from profiler.plugin.push_desk import ENGINE

logger = logging.getLogger(__name__)


class DemandDesk:
    """Starts, stops and fetches recordings.

    Windows in seconds are closed by a message to all ranks, so that all close them between the same two steps:
    their own clocks would differ by a step.
    """

    def __init__(self, carrier: RankCarrier) -> None:
        self._carrier = carrier
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, options: DemandOptions) -> DemandState:
        """Begin a recording."""
        recording_id = uuid.uuid4().hex[:12]
        states = await self._carrier.order("demand_start", recording_id=recording_id, options=options.to_json())
        self._cancel_tasks()
        self._tasks = [asyncio.ensure_future(self._end_with_lease(options.lease_seconds, recording_id))]
        if options.window_seconds is not None:
            self._tasks.append(asyncio.ensure_future(self._close_windows(options.window_seconds, recording_id)))
        return _state(states[0])

    async def stop(self) -> DemandState:
        """End the recording; what it holds can still be fetched."""
        states = await self._carrier.order("demand_stop")
        self._cancel_tasks()
        return _state(states[0])

    async def fetch(self, max_windows: int) -> DemandAnswer:
        """Hand over finished windows, oldest first, each once."""
        parts = await self._carrier.order("demand_fetch", max_windows=max_windows)
        return merge_ranks(parts, engine=ENGINE)

    async def _close_windows(self, seconds: float, recording_id: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                states = await self._carrier.order("demand_rotate")
            except OrderRefused as refusal:
                logger.warning("moeplan: a window was not closed: %s", refusal.detail)
                continue
            if not states[0]["recording"] or states[0]["recording_id"] != recording_id:
                return

    async def _end_with_lease(self, seconds: float, recording_id: str) -> None:
        """Stop a recording that nobody has fetched from for so long: whoever started it is gone."""
        wait_s = seconds
        while True:
            await asyncio.sleep(wait_s)
            try:
                state = (await self._carrier.order("demand_state"))[0]
                if not state["recording"] or state["recording_id"] != recording_id:
                    return
                wait_s = seconds - float(state["unfetched_s"])
                if wait_s <= 0:
                    logger.warning("moeplan: recording %s ended: not fetched for %g s", recording_id, seconds)
                    await self._carrier.order("demand_stop")
                    return
            except OrderRefused as refusal:
                logger.warning("moeplan: a recording's lease was not looked at: %s", refusal.detail)
                wait_s = seconds

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []


def _state(state: dict[str, object]) -> DemandState:
    return DemandState.from_json({"engine": ENGINE, "simulated": False, **state})
