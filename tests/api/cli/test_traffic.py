"""``--objective traffic`` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.plan_file import read_plan
from profiler.recordings import AFFINITY, recording_path
from tests.api.cli.command import Moeplan

PLAN = ("--gpus", 4, "--slots-per-gpu", 8, "--objective", "traffic", "--max-imbalance", 1.1)


@pytest.fixture
def recording() -> Path:
    return recording_path(AFFINITY)


def test_a_plan_for_traffic_sends_fewer_copies(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "p.json", tmp_path / "p.html"
    ran = moeplan("plan", recording, *PLAN, "--holdout", 0.5, "--out", out, "--json")
    metrics, eplb, bound = ran.json["metrics"], ran.json["baselines"]["eplb"], ran.json["bound"]
    assert metrics["gpus_per_token"] < 0.97 * eplb["gpus_per_token"]
    assert metrics["holdout"]["gpus_per_token"] < eplb["holdout"]["gpus_per_token"]
    assert metrics["worst_window"]["imbalance"] <= 1.1 + 1e-9
    assert 0 < bound["gpus_per_token"] <= metrics["gpus_per_token"]
    assert ran.json["gap"] == pytest.approx(metrics["gpus_per_token"] / bound["gpus_per_token"] - 1)
    assert "eigenvalue" in bound["relaxation"]["gpus_per_token"], "tighter without replicas than counting experts"
    assert read_plan(out).bound.gpus_per_token == bound["gpus_per_token"]
    moeplan("report", out, "--out", page)
    text = page.read_text()
    assert "A token is sent to" in text
    assert "No layout can send a token to fewer than" in text


def test_it_is_printed_beside_eplb(moeplan: Moeplan, recording: Path) -> None:
    printed = moeplan("compare", recording, *PLAN, "--holdout", 0.5).out
    assert "proven: gpus_per_token >=" in printed
    assert "on what was kept apart, eplb" in printed


def test_the_same_file_is_written_again_on_workers(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    files = []
    for index, more in enumerate(([], ["--workers", 2])):
        files.append(tmp_path / f"{index}.json")
        assert moeplan("plan", recording, *PLAN, *more, "--out", files[-1]).code == 0
    assert len({file.read_bytes() for file in files}) == 1


def test_from_counts_it_says_so(moeplan: Moeplan, tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    counts.write_text('{"logical_count": [[5, 3, 2, 9]]}')
    ran = moeplan(
        "plan",
        counts,
        "--gpus",
        2,
        "--slots-per-gpu",
        2,
        "--objective",
        "traffic",
        "--out",
        tmp_path / "p.json",
        "--json",
    )
    assert "TRAFFIC_NEEDS_TOKENS" in ran.warning_codes
    assert ran.code == 0


def test_a_window_is_planned_on_its_own_tokens(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    ran = moeplan(
        "plan", recording, "--gpus", 2, "--objective", "traffic", "--max-imbalance", 1.3, "--phase", "decode",
        "--per-window", "--out", tmp_path / "p.json", "--json",
    )  # fmt: skip
    (plan,) = ran.json["plans"]
    assert plan["bound"]["gpus_per_token"] > 0
    assert plan["metrics"]["gpus_per_token"] <= plan["baselines"]["trivial"]["gpus_per_token"]
