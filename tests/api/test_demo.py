"""The demo: the loop closes, and what the engine counts is what the ruler predicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.demo import run_demo


def test_the_loop_closes(tmp_path: Path) -> None:
    said: list[str] = []
    result = run_demo(tmp_path, seed=0, say=said.append)
    planned = result.plan.metrics
    assert result.pushed.status == "applied"
    assert planned.sources == "measured"
    assert planned.local_gpu is not None
    assert planned.local_gpu >= 0.6
    assert result.before.local_gpu is not None
    assert result.after.local_gpu is not None
    # Counted token by token, on traffic of which planning saw only a part.
    assert result.after.local_gpu == pytest.approx(planned.local_gpu, abs=0.05)
    assert result.after.local_gpu > result.before.local_gpu + 0.05
    assert all("simulated" in line for line in said[:1])
    for path in (result.trace_file, result.plan_file, result.report_file):
        assert path.is_file()
