"""``--max-overflow`` on the command line."""

from __future__ import annotations

from pathlib import Path

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
