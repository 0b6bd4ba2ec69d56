"""Limits on moves and gain against moves, on the command line; counted by ``moeplan diff``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.recordings import MIXED, recording_path
from tests.api.cli.command import Moeplan, write_json

GPUS, SLOTS, EXPERT_BYTES = 4, 12, 1000
LAYERS, EXPERTS = 6, 32


@pytest.fixture(scope="module")
def recording() -> Path:
    return recording_path(MIXED)


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A layout that suits nobody: hot and cold experts by their number."""
    row = [(7 * slot) % EXPERTS for slot in range(GPUS * SLOTS)]
    return write_json(tmp_path / "running.json", {"physical_to_logical_map": [row] * LAYERS})


@pytest.fixture
def arguments(recording: Path, running: Path, tmp_path: Path) -> list[object]:
    return [
        "plan", recording, "--gpus", GPUS, "--slots-per-gpu", SLOTS, "--current", running, "--out",
        tmp_path / "plan.json", "--json",
    ]  # fmt: skip


def moved_slots(moeplan: Moeplan, running: Path, plan: Path) -> int:
    counted = moeplan("diff", running, plan, "--gpus", GPUS, "--json").json["moved_slots"]
    assert isinstance(counted, int)
    return counted


@pytest.mark.parametrize(
    "limit", [("--max-moved-slots", 30), ("--max-moved-bytes", 30_999, "--expert-bytes", EXPERT_BYTES)]
)
def test_a_plan_keeps_its_limit(
    limit: tuple[object, ...], moeplan: Moeplan, arguments: list[object], running: Path, tmp_path: Path
) -> None:
    ran = moeplan(*arguments, *limit)
    assert ran.code == 0
    assert 0 < moved_slots(moeplan, running, tmp_path / "plan.json") <= 30
    assert ran.json["moves"]["moved_slots"] <= 30
    assert "MOVE_BUDGET_BINDS" in ran.warning_codes
    assert json.loads((tmp_path / "plan.json").read_text())["options"]["max_moved_slots"] == 30
    gained, before = ran.json["metrics"]["local_gpu"], ran.json["baselines"]["current"]["local_gpu"]
    assert gained > before


def test_without_a_current_layout_the_limit_counts_from_the_trivial_one(
    moeplan: Moeplan, recording: Path, tmp_path: Path
) -> None:
    ran = moeplan(
        "plan", recording, "--gpus", GPUS, "--slots-per-gpu", SLOTS, "--max-moved-slots", 20, "--out",
        tmp_path / "p.json", "--json",
    )  # fmt: skip
    assert ran.json["moves"]["before"] == "trivial"
    assert 0 < ran.json["moves"]["moved_slots"] <= 20


def test_the_printed_plan_says_how_many_slots_were_allowed(moeplan: Moeplan, arguments: list[object]) -> None:
    ran = moeplan(*arguments[:-1], "--max-moved-slots", 7)
    assert "from the current layout; 7 were allowed" in ran.out


def test_gain_against_moves_is_printed_and_in_the_json(
    moeplan: Moeplan, arguments: list[object], running: Path, tmp_path: Path
) -> None:
    ran = moeplan(*arguments, "--pareto", "--expert-bytes", EXPERT_BYTES)
    points = ran.json["pareto"]
    assert [set(point) for point in points] == [
        {"moved_slots", "moved_bytes", "local_gpu", "local_node", "imbalance", "gpus_per_token"}
    ] * len(points)
    moved = [point["moved_slots"] for point in points]
    assert moved == sorted(set(moved))
    assert moved[0] == 0
    assert moved[-1] == ran.json["moves"]["moved_slots"] == moved_slots(moeplan, running, tmp_path / "plan.json")
    assert all(point["moved_bytes"] == EXPERT_BYTES * point["moved_slots"] for point in points)
    assert points[0]["local_gpu"] == pytest.approx(ran.json["baselines"]["current"]["local_gpu"])
    assert points[-1]["local_gpu"] == pytest.approx(ran.json["metrics"]["local_gpu"])
    goods = [(-point["moved_slots"], point["local_gpu"], -point["imbalance"]) for point in points]
    for good in goods:
        assert not any(other != good and all(a >= b for a, b in zip(other, good, strict=True)) for other in goods)
    assert len(points) >= 4
    # It is an answer to a question about moves, no part of the plan.
    assert "pareto" not in json.loads((tmp_path / "plan.json").read_text())
    assert "gain against moves from the current layout" in moeplan(*arguments[:-1], "--pareto").out


def test_the_same_plan_with_and_without_pareto(moeplan: Moeplan, arguments: list[object], tmp_path: Path) -> None:
    written = []
    for extra in ([], ["--pareto"]):
        assert moeplan(*arguments, "--max-moved-slots", 15, *extra).code == 0
        written.append((tmp_path / "plan.json").read_bytes())
    assert written[0] == written[1]


def test_compare_takes_the_same_limits(moeplan: Moeplan, recording: Path, running: Path) -> None:
    ran = moeplan(
        "compare", recording, "--gpus", GPUS, "--slots-per-gpu", SLOTS, "--current", running, "--max-moved-slots", 10,
        "--pareto", "--json",
    )  # fmt: skip
    assert ran.json["moves"]["moved_slots"] <= 10
    assert ran.json["pareto"][-1]["moved_slots"] > 10


def test_unchanged_demand_moves_nothing(moeplan: Moeplan, arguments: list[object], tmp_path: Path) -> None:
    assert moeplan(*arguments).code == 0
    again = [tmp_path / "plan.json" if each == tmp_path / "running.json" else each for each in arguments]
    again[again.index("--out") + 1] = tmp_path / "again.json"
    ran = moeplan(*again, "--pareto", "--max-moved-slots", 0)
    assert ran.json["moves"]["moved_slots"] == 0
    assert [point["moved_slots"] for point in ran.json["pareto"]] == [0]
    assert "MOVE_BUDGET_BINDS" not in ran.warning_codes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-moved-bytes", 100], "needs --expert-bytes"),
        (["--max-moved-bytes", -1, "--expert-bytes", 1], "--max-moved-bytes is -1"),
        (["--max-moved-slots", -1], "--max-moved-slots is -1"),
        (["--max-moved-slots", 10**30], "--max-moved-slots is 1"),
        (["--max-moved-slots", 1, "--max-moved-bytes", 1, "--expert-bytes", 1], "exclude each other"),
    ],
)
def test_limits_that_cannot_be(options: list[object], said: str, moeplan: Moeplan, arguments: list[object]) -> None:
    assert said in moeplan.refused(*arguments, *options, code="BAD_OPTION")


@pytest.mark.parametrize("option", [["--max-moved-slots", 5], ["--pareto"]])
def test_fit_has_no_layout_to_move_from(
    option: list[object], moeplan: Moeplan, recording: Path, tmp_path: Path
) -> None:
    command = ["plan", recording, "--gpus", GPUS, "--fit", "--out", tmp_path / "p.json", *option]
    assert "--fit" in moeplan.refused(*command, code="BAD_OPTION")


def test_a_layout_with_experts_twice_on_a_gpu_has_fewest_moves(
    moeplan: Moeplan, recording: Path, tmp_path: Path
) -> None:
    row = [slot % EXPERTS for slot in range(GPUS * SLOTS)]
    row[1], row[33] = row[0], 1
    twice = write_json(tmp_path / "twice.json", {"physical_to_logical_map": [row] * LAYERS})
    command = ["plan", recording, "--gpus", GPUS, "--slots-per-gpu", SLOTS, "--current", twice, "--json", "--out"]
    moeplan.refused(*command, tmp_path / "p.json", "--max-moved-slots", 5, code="INFEASIBLE", exit_code=3)
    ran = moeplan(*command, tmp_path / "p.json", "--max-moved-slots", 6)
    assert ran.json["moves"]["moved_slots"] == 6
