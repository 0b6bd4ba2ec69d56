"""Starting a replay engine: blocking, for the command line, or in the background, for the demo and tests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Unpack

import uvicorn

from placement.errors import BadOption
from profiler.http_server import HttpServer, is_loopback, listening_on, url_of
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
    with _listening(trace, replay, host=host, port=port) as (server, listener):
        server.serve_until_told(listener, on_ready=lambda: on_ready(url_of(listener)))


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
    with (
        _listening(trace, replay, host=host, port=port) as (server, listener),
        server.serving_beside(listener, name="moeplan-replay-http"),
    ):
        yield url_of(listener)


@contextmanager
def _listening(
    trace: TraceReader, options: ReplayOptions, *, host: str, port: int
) -> Iterator[tuple[HttpServer, socket.socket]]:
    """Build engine, clock and server around an open socket; all of them are closed at the end."""
    if not is_loopback(host) and options.admin_key is None:
        raise BadOption(f"{host} can be reached by others; set an admin key, or listen on {LOOPBACK}.")
    engine = ReplayEngine(read_traffic(trace), options)
    with listening_on(host, port) as listener:
        loop = StepLoop(engine)
        loop.start()
        try:
            config = uvicorn.Config(
                create_app(loop, options),
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
            )
            yield HttpServer(config), listener
        finally:
            loop.stop()
