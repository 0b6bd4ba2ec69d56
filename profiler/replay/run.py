"""Starting a replay engine: blocking, for the command line, or in the background, for the demo and tests."""

from __future__ import annotations

import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Unpack

import uvicorn

from placement.errors import BadOption
from profiler.errors import AddressNotAvailable
from profiler.replay.engine import ReplayEngine
from profiler.replay.loop import StepLoop
from profiler.replay.options import ReplayKeywords, ReplayOptions
from profiler.replay.server import create_app
from profiler.replay.traffic import read_traffic
from profiler.trace import TraceReader

LOOPBACK = "127.0.0.1"
SHUTDOWN_GRACE_S = 3
"""Requests that are still open are dropped so long after the engine was told to stop."""


def serve_replay(
    trace: TraceReader,
    *,
    gpus: int,
    slots_per_gpu: int,
    port: int,
    host: str = LOOPBACK,
    on_ready: Callable[[str], None] = lambda url: None,
    **options: Unpack[ReplayKeywords],
) -> None:
    """Serve a recorded token trace as an engine until SIGINT or SIGTERM, then return.

    Parameters
    ----------
    trace
        A trace of kind ``tokens``.
    gpus, slots_per_gpu, **options
        See :class:`profiler.replay.options.ReplayOptions`.
    port
        0 takes a free one.
    host
        Another host than the loopback needs ``admin_key``.
    on_ready
        Called with the URL once requests are answered.

    Raises
    ------
    BadOption, EmptyProfile, SourceCountMismatch, SlotsBelowExperts, RedundancyTooHigh, DispatchCombo, ...
        The trace or the options are unusable.
    AddressNotAvailable
        The address is in use, or not one of this machine.
    """
    replay = ReplayOptions(gpus=gpus, slots_per_gpu=slots_per_gpu, **options)
    with _listening(trace, replay, host=host, port=port) as (server, listener, url):
        server.on_started = lambda: on_ready(url)
        with _signals_end_quietly():
            server.run(sockets=[listener])


@contextmanager
def running_replay(
    trace: TraceReader,
    *,
    gpus: int,
    slots_per_gpu: int,
    port: int = 0,
    host: str = LOOPBACK,
    **options: Unpack[ReplayKeywords],
) -> Iterator[str]:
    """Serve a trace in background threads while the block runs; the value is the engine's URL.

    Parameters and errors are those of :func:`serve_replay`.
    """
    replay = ReplayOptions(gpus=gpus, slots_per_gpu=slots_per_gpu, **options)
    with _listening(trace, replay, host=host, port=port) as (server, listener, url):
        ready = threading.Event()
        server.on_started = ready.set
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="moeplan-replay-http")
        thread.start()
        try:
            while not ready.wait(timeout=0.1):
                if not thread.is_alive():
                    raise AddressNotAvailable(f"the replay engine's HTTP server did not start on {url}.")
            yield url
        finally:
            server.should_exit = True
            thread.join()


class _Server(uvicorn.Server):
    """A uvicorn server that says when it answers requests."""

    on_started: Callable[[], None] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_started()


@contextmanager
def _listening(
    trace: TraceReader, options: ReplayOptions, *, host: str, port: int
) -> Iterator[tuple[_Server, socket.socket, str]]:
    """Build engine, clock and server around an open socket; all of them are closed at the end."""
    if not _is_loopback(host) and options.admin_key is None:
        raise BadOption(f"{host} can be reached by others; set an admin key, or listen on {LOOPBACK}.")
    engine = ReplayEngine(read_traffic(trace), options)
    with _bound_socket(host, port) as listener:
        loop = StepLoop(engine)
        loop.start()
        try:
            config = uvicorn.Config(
                create_app(loop, options),
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
            )
            shown = f"[{host}]" if ":" in host else host
            yield _Server(config), listener, f"http://{shown}:{listener.getsockname()[1]}"
        finally:
            loop.stop()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound_socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise AddressNotAvailable(f"{host}, port {port} cannot be listened on: {error}.") from error


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server without ending the process.

    uvicorn sends itself the signal again once it has shut down; a handler of ours makes that harmless, so that the
    caller goes on and the process exits with 0. Signals belong to the main thread; elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
