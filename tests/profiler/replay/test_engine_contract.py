"""The replay engine keeps the contract; a real SGLang runs the same tests in ``tests/engine``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from profiler.engine.client import EngineClient
from profiler.replay import running_replay
from tests.engine.engine_server import EngineServer
from tests.engine_contract import EngineContract
from tests.profiler.replay.traces import made_up


@pytest.fixture(scope="module")
def subject() -> Iterator[EngineServer]:
    """Serve a replay engine of the size of the live one, whose own trace is over: it is idle."""
    trace = made_up([(40, 8)] * 8, layers=3, experts=16, top_k=4)
    serving = running_replay(trace, gpus=2, slots_per_gpu=12, steps_per_s=100, passes=1)
    with serving as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
        with EngineClient(url) as client:
            client.run_steps(1000)
        nowhere = {"fault_file": Path(), "log_file": Path()}
        yield EngineServer(url, "0.5.23", home_ranks=True, admin_key="", client=http, **nowhere)


class TestReplayEngine(EngineContract):
    """All of it."""
