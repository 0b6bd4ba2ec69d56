"""``--max-overflow`` on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.api.cli.command import Moeplan, write_json


@pytest.fixture
def hot(tmp_path: Path) -> Path:
    """One layer in which one of four experts has 70 % of the tokens."""
    return write_json(tmp_path / "hot.json", {"logical_count": [[[70, 10, 10, 10]]]})


def test_a_plan_keeps_the_limit_and_says_so(moeplan: Moeplan, hot: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    planned = moeplan(
        "plan", hot, "--gpus", 4, "--slots-per-gpu", 2, "--max-overflow", 0, "--out", out, "--max-imbalance", 2
    )  # fmt: skip
    assert planned.code == 0
    assert "overflow_share of the worst window 0.0000, limit 0 at 1.25" in planned.out
    judged = moeplan("evaluate", out, hot, "--gpus", 4, "--json").json["metrics"]
    assert all(window["overflow_share"] == 0 for window in judged["windows"])
    assert [at["capacity_factor"] for at in judged["capacity"]] == [1.0, 1.25, 1.5, 2.0]


def test_what_is_impossible_is_refused_with_numbered_remedies(moeplan: Moeplan, hot: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = ("plan", hot, "--gpus", 4, "--slots-per-gpu", 1, "--max-overflow", 0.01, "--out", out)
    moeplan.refused(*arguments, code="INFEASIBLE", exit_code=3)
    assert moeplan(*arguments).err.splitlines()[1:] == [
        "  1. allow --max-overflow 0.3875 or more",
        "  2. raise --capacity-factor to 2.76 or more",
        "  3. give 2 slots per GPU or more",
    ]
    assert not out.exists()


def test_single_steps_stand_beside_the_windows(moeplan: Moeplan, tmp_path: Path) -> None:
    """Every step goes to one pair of experts: the window is even, no step is."""
    step = np.arange(120) // 12
    topk = np.stack([(2 * (step % 4))[:, None] + np.arange(2)] * 2)
    recording = tmp_path / "steps.npz"
    np.savez(recording, topk=topk.astype(np.int16), request_id=step, num_experts=np.int32(8), step=step)
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    ran = moeplan("plan", recording, "--gpus", 4, "--slots-per-gpu", 2, "--out", out, "--json")
    (steps,) = ran.json["baselines"]["trivial"]["step_overflow"]
    assert ran.json["baselines"]["trivial"]["overflow_share"] < steps["overflow_share"]
    assert (steps["steps"], steps["overflow_share"], steps["dropped"]) == (10, 1 - 1.25 / 4, 1 - 1.25 / 4)
    assert "overflow_share in 10" in moeplan("evaluate", out, recording, "--gpus", 4).out
    moeplan("report", out, "--out", page)
    assert f"overflow_share in {steps['phase']} steps at 1.25" in page.read_text().replace("\u200b", "")
