"""The engine's thread: steps at the clock's pace, and commands between steps."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from profiler.replay.engine import ReplayEngine
from profiler.replay.requests import GenerateRequest

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LONGEST_LAG_S = 1.0
"""A clock that fell behind by more than this goes on from now instead of catching up."""


class EngineStopped(Exception):
    """The engine's thread has ended; it answers nothing any more."""


class StepLoop:
    """Runs an engine's steps in a thread of their own.

    Parameters
    ----------
    engine : ReplayEngine
        Touched by that thread only, from :meth:`start` on.
    """

    def __init__(self, engine: ReplayEngine) -> None:
        self.stopping = threading.Event()
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="moeplan-replay-steps", daemon=True)
        self._idle = False
        self._next_step_s = 0.0

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self.stopping.is_set()

    def start(self) -> None:
        self._next_step_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step at hand."""
        self.end_soon()
        self._thread.join()

    def end_soon(self) -> None:
        """Let the thread end after the step at hand, without waiting for it."""
        self.stopping.set()
        self._commands.put(lambda: None)

    def call(self, command: Callable[[ReplayEngine], Result]) -> Result:
        """Run ``command`` between two steps and return its result; its exceptions are raised here.

        Raises
        ------
        EngineStopped
        """
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(command(self._engine))
            except BaseException as error:  # noqa: BLE001 - handed over to the caller, whatever it is
                future.set_exception(error)

        self._commands.put(run)
        while True:
            try:
                return future.result(timeout=0.2)
            except TimeoutError:
                if not self._thread.is_alive() and not future.done():
                    raise EngineStopped("the replay engine has stopped.") from None

    def run_steps(self, steps: int) -> tuple[int, bool]:
        """Run up to ``steps`` steps now; return the steps served since start, and whether the trace is at its end."""
        idle = False
        for _ in range(steps):
            idle = not self.call(ReplayEngine.step)
            if idle:
                break
        return self.call(lambda engine: engine.steps), idle

    async def generate(self, request: GenerateRequest) -> dict[str, Any]:
        """Let the engine serve a request among the trace's own and return its answer.

        Raises
        ------
        EngineStopped
        """
        answer = asyncio.wrap_future(await asyncio.to_thread(self.call, self._submit(request)))
        while not answer.done():
            await asyncio.wait([answer], timeout=0.2)
            if not self.alive and not answer.done():
                raise EngineStopped("the replay engine has stopped.")
        return answer.result()

    def _submit(self, request: GenerateRequest) -> Callable[[ReplayEngine], Future[dict[str, Any]]]:
        def submit(engine: ReplayEngine) -> Future[dict[str, Any]]:
            self._idle = False  # there is something to do again, also after the trace's end
            return engine.submit(request)

        return submit

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    command = self._commands.get(timeout=self._seconds_to_next_step())
                except queue.Empty:
                    self._idle = not self._engine.step()
                    self._move_clock()
                else:
                    command()
        except Exception:
            logger.exception("The replay engine's step failed; it has stopped.")

    def _seconds_to_next_step(self) -> float | None:
        """Return how long to wait for commands before the next step; None where none is due until a command comes."""
        if self._idle or self._engine.options.steps_per_s == 0:
            return None
        return max(0.0, self._next_step_s - time.monotonic())

    def _move_clock(self) -> None:
        rate = self._engine.options.steps_per_s
        if rate:
            self._next_step_s = max(self._next_step_s, time.monotonic() - LONGEST_LAG_S) + 1 / rate
        else:
            time.sleep(0)  # steps without a pause would keep the HTTP threads from running
