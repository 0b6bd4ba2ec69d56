"""Copies per token and active experts on the command line, in plan files and in the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profiler.plan_file import read_plan
from profiler.recordings import AFFINITY, MIXED, recording_path
from tests.api.cli.command import Moeplan

NAMES = ("gpus_per_token", "nodes_per_token", "active_experts")


@pytest.fixture
def recording() -> Path:
    return recording_path(AFFINITY)


@pytest.fixture
def with_steps(tmp_path: Path) -> Path:
    """A trace whose tokens know their steps."""
    generator = np.random.default_rng(0)
    topk = np.stack([generator.permuted(np.tile(np.arange(8), (120, 1)), axis=1)[:, :2] for _ in range(2)])
    path = tmp_path / "steps.npz"
    step, request = np.arange(120) // 12, np.arange(120) // 10
    np.savez(path, topk=topk.astype(np.int16), request_id=request, num_experts=np.int32(8), step=step)
    return path


def test_every_layout_gets_the_figures_of_a_trace(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "p.json", tmp_path / "p.html"
    ran = moeplan(
        "plan", recording, "--gpus", 4, "--nodes", 2, "--slots-per-gpu", 10, "--holdout", 0.3, "--out", out, "--json"
    )
    rows = {**ran.json["baselines"], "moeplan": ran.json["metrics"]}
    for row in rows.values():
        for figures in (row, row["holdout"]):
            assert 0 < figures["nodes_per_token"] <= figures["gpus_per_token"] <= 3
            assert figures["token_basis"]["tokens"] == figures["token_basis"]["recorded_tokens"] > 0
            assert figures["token_basis"]["gpus_per_token_interval"] is None
    assert read_plan(out).metrics.gpus_per_token == rows["moeplan"]["gpus_per_token"]

    judged = moeplan("evaluate", out, recording, "--gpus", 4, "--nodes", 2, "--json").json["metrics"]
    parts = (rows["moeplan"], rows["moeplan"]["holdout"])
    tokens = [part["token_basis"]["tokens"] for part in parts]
    mean = sum(part["gpus_per_token"] * count for part, count in zip(parts, tokens, strict=True)) / sum(tokens)
    assert judged["gpus_per_token"] == pytest.approx(mean)

    assert moeplan("report", out, "--out", page).code == 0
    text = page.read_text().replace("\u200b", "")
    assert "gpus_per_token" in text
    assert "nodes_per_token" in text
    assert "active_experts" not in text


def test_a_sample_says_how_sure_it_is(moeplan: Moeplan, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    plan = ("plan", recording_path(MIXED), "--gpus", 2, "--slots-per-gpu", 20, "--out", out, "--sample-tokens", 20000)
    ran = moeplan(*plan, "--json")
    basis = ran.json["metrics"]["token_basis"]
    low, high = basis["gpus_per_token_interval"]
    assert low < ran.json["metrics"]["gpus_per_token"] < high
    assert 10000 < basis["tokens"] <= 20000 < basis["recorded_tokens"]
    assert read_plan(out).options.sample_tokens == 20000
    assert "\N{PLUS-MINUS SIGN}" in moeplan(*plan).out
    moeplan.refused(*plan[:-1], 0, code="BAD_OPTION")
    moeplan.refused("evaluate", out, recording_path(MIXED), "--gpus", 2, "--sample-tokens", -3, code="BAD_OPTION")


def test_active_experts_are_shown_where_steps_are_known(moeplan: Moeplan, with_steps: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "p.json", tmp_path / "p.html"
    ran = moeplan("plan", with_steps, "--gpus", 2, "--slots-per-gpu", 5, "--out", out, "--json")
    assert 0 < ran.json["metrics"]["active_experts"] <= 5
    assert ran.json["metrics"]["token_basis"]["steps"] == 10
    assert "active_experts" in moeplan("evaluate", out, with_steps, "--gpus", 2).out
    moeplan("report", out, "--out", page)
    assert "over 10 of 10 recorded steps" in page.read_text()


def test_counts_have_none_of_them(moeplan: Moeplan, tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    counts.write_text('{"logical_count": [[5, 3, 2, 9]]}')
    out = tmp_path / "p.json"
    ran = moeplan("plan", counts, "--gpus", 2, "--slots-per-gpu", 2, "--out", out, "--json")
    assert all(ran.json["metrics"][name] is None for name in NAMES)
    printed = moeplan("evaluate", out, counts, "--gpus", 2).out
    assert not any(name in printed for name in NAMES)


def test_without_an_all_to_all_nothing_is_sent(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    ran = moeplan(
        "plan",
        recording,
        "--gpus",
        2,
        "--slots-per-gpu",
        20,
        "--dispatch",
        "even",
        "--out",
        tmp_path / "p.json",
        "--json",
    )
    assert ran.json["metrics"]["gpus_per_token"] is None
    assert ran.json["metrics"]["token_basis"]["tokens"] > 0


def test_each_window_is_judged_on_its_own_tokens(moeplan: Moeplan, with_steps: Path, tmp_path: Path) -> None:
    ran = moeplan(
        "plan", with_steps, "--gpus", 2, "--slots-per-gpu", 5, "--window-by", "steps:7", "--per-window",
        "--out", tmp_path / "p.json", "--json",
    )  # fmt: skip
    assert [plan["metrics"]["token_basis"]["tokens"] for plan in ran.json["plans"]] == [84, 36]
