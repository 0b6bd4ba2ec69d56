"""A short row of random pushes; ``python -m tests.bench.engine_pushes`` makes it 200."""

from __future__ import annotations

from pathlib import Path

from tests.engine.engine_server import EngineServer
from tests.engine.random_pushes import push_at_random


def test_every_random_push_holds(engine: EngineServer, tmp_path: Path) -> None:
    done = push_at_random(engine, pushes=10, seed=81, history_folder=tmp_path)
    assert done.changed_slots > 0
    assert done.answered > 0
    assert done.faultless, done
