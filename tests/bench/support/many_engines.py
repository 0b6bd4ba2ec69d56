"""Many replay engines in one process: each a real HTTP server on a port of its own, with its own layout and pushes.

One HTTP server listens on all ports and one thread steps all engines, and only those that somebody records: what an
engine routes while nobody looks is seen by nobody. So 200 engines fit beside the service on a small machine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from profiler.http_server import HttpServer, listening_on, url_of
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.recordings import MIXED, recording_path
from profiler.replay.engine import ReplayEngine
from profiler.replay.loop import EngineStopped, StepLoop
from profiler.replay.options import ReplayOptions
from profiler.replay.server import create_app
from profiler.replay.traffic import read_traffic

Result = TypeVar("Result")

LOOPBACK = "127.0.0.1"
SHORTEST_PAUSE_S = 0.005


class SharedLoop(StepLoop):
    """An engine that is stepped by a thread of others: commands and steps take turns by a lock."""

    def __init__(self, engine: ReplayEngine) -> None:
        super().__init__(engine)
        self._turn = threading.Lock()
        self._due_s = 0.0

    @property
    def alive(self) -> bool:
        return not self.stopping.is_set()

    def start(self) -> None:
        """Nothing has to be started."""

    def stop(self) -> None:
        self.stopping.set()

    def end_soon(self) -> None:
        self.stopping.set()

    def call(self, command: Callable[[ReplayEngine], Result]) -> Result:
        with self._turn:
            if self.stopping.is_set():
                raise EngineStopped("the replay engine has stopped.")
            return command(self._engine)

    def step_if_due(self, at_s: float) -> None:
        """Serve the next step when its time has come and somebody records."""
        rate = self._engine.options.steps_per_s or 0.0
        if at_s < self._due_s or not rate or self.stopping.is_set() or not self._engine.is_watched:
            return
        with self._turn:
            self._engine.step()
        self._due_s = max(self._due_s, at_s - 1.0) + 1 / rate


@dataclass(frozen=True)
class HostedEngine:
    """One of many engines.

    Attributes
    ----------
    url : str
    loop : SharedLoop
        What it does between two steps.
    """

    url: str
    loop: SharedLoop

    def restart(self) -> None:
        """Be as after a start: the first layout, another ``boot_id``, nobody's recording."""
        self.loop.call(lambda engine: engine.start_anew())


@contextmanager
def many_engines(count: int, **options: Any) -> Iterator[Sequence[HostedEngine]]:
    """Run engines of the shipped recording while the block runs; their random picks differ.

    Parameters
    ----------
    count
    **options
        Of :class:`profiler.replay.options.ReplayOptions`.
    """
    usual: dict[str, Any] = {"gpus": 8, "slots_per_gpu": 16, "homes": "round-robin", "steps_per_s": 100.0}
    chosen = ReplayOptions(**{**usual, **options})
    (trace,) = open_inputs([recording_path(MIXED)], ReadOptions())
    traffic = read_traffic(trace)  # read once, shared by all
    loops = [SharedLoop(ReplayEngine(traffic, replace(chosen, seed=number))) for number in range(count)]
    with ExitStack() as stack:
        listeners = [stack.enter_context(listening_on(LOOPBACK, 0)) for _ in loops]
        engines = [HostedEngine(url_of(each), loop) for each, loop in zip(listeners, loops, strict=True)]
        apps = {each.getsockname()[1]: create_app(loop, chosen) for each, loop in zip(listeners, loops, strict=True)}
        stack.enter_context(_stepping(loops))
        stack.enter_context(_served(apps, listeners))
        yield engines


class _ByPort:
    """Hands a request to the application of the port that it came in at."""

    def __init__(self, apps: dict[int, ASGIApp]) -> None:
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._apps[scope["server"][1]](scope, receive, send)


@contextmanager
def _served(apps: dict[int, ASGIApp], listeners: Sequence[socket.socket]) -> Iterator[None]:
    config = uvicorn.Config(
        _ByPort(apps), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=3
    )
    server = HttpServer(config)
    ready = threading.Event()
    server.on_started = ready.set
    thread = threading.Thread(target=server.run, kwargs={"sockets": list(listeners)}, name="moeplan-many-engines")
    thread.start()
    try:
        while not ready.wait(timeout=0.1):
            if not thread.is_alive():
                raise RuntimeError("the HTTP server of the engines did not start")
        yield
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def _stepping(loops: Sequence[SharedLoop]) -> Iterator[None]:
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(SHORTEST_PAUSE_S):
            at_s = time.monotonic()
            for loop in loops:
                loop.step_if_due(at_s)

    thread = threading.Thread(target=run, name="moeplan-many-steps", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        for loop in loops:
            loop.stop()
