"""The demo: the loop closes, and what the engine counts is what the ruler predicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.client.connection import ServiceConnection
from api.demo import run_demo
from api.demo_service import demo_service


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


def test_every_page_of_the_service_has_content(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        demo_service(tmp_path / "service", port=0, say=said.append) as running,
        ServiceConnection(running.url) as service,
    ):
        for kind in ("engines", "traces", "plans", "rollouts", "schedules", "decisions", "jobs"):
            assert service.pages(f"/v1/{kind}", most=5), kind
        assert service.read("/").startswith(b"<!") or b"<html" in service.read("/")
    assert running.rollout["state"] == "applied"
    assert running.rollout["verdict"] is not None
    assert running.decision["sentence"]
    assert any("home GPU" in line for line in said)
