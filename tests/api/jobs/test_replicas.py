"""Two replicas of the whole service on one database: each tick is done once (the short form of the benchmark)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.service_ticks import tick

pytestmark = pytest.mark.one_database


def test_two_replicas_do_every_tick_once(database_url: str, tmp_path: Path) -> None:
    found = tick(database_url, tmp_path / "data", seconds=10.0, every_s=1.0)
    assert [(each.kind, each.doubled, each.missing) for each in found] == [
        ("end at once", 0, 0),
        ("record and plan", 0, 0),
    ]
    assert all(each.once_each for each in found)
    assert all(len(each.run) >= 5 for each in found)
    assert found[1].running > 0
