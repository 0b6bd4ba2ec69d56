"""Replay engines with a client at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from profiler.engine.client import EngineClient
from profiler.replay import running_replay
from profiler.trace import TraceReader


@contextmanager
def client_of_replay(trace: TraceReader, **options: Any) -> Iterator[EngineClient]:
    """Serve a trace and give a client of it; options are those of :func:`profiler.replay.running_replay`."""
    with running_replay(trace, **options) as url, EngineClient(url) as client:
        yield client
