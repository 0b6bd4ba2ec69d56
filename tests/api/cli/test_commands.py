"""Every command on real recordings: what it prints, writes and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from profiler.recordings import MIXED, recording_path
from tests.api.cli.command import Moeplan, write_json


@pytest.fixture(scope="module")
def recording() -> Path:
    return recording_path(MIXED)


@pytest.fixture
def plan(moeplan: Moeplan, recording: Path, tmp_path: Path) -> Path:
    out = tmp_path / "plan.json"
    ran = moeplan("plan", recording, "--gpus", 4, "--slots-per-gpu", 12, "--out", out, "--json")
    assert ran.code == 0
    return out


def test_info_says_what_a_recording_holds(moeplan: Moeplan, recording: Path) -> None:
    (facts,) = moeplan("trace", "info", recording, "--json").json["inputs"]
    assert (facts["layers"], facts["experts"], facts["top_k"], facts["requests"]) == (6, 32, 4, 360)
    assert "360" in moeplan("trace", "info", recording).out


def test_an_imported_trace_gives_the_same_plan(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    assert moeplan("trace", "import", recording, "--out", trace).code == 0
    plans = [
        moeplan("plan", source, "--gpus", 4, "--slots-per-gpu", 12, "--out", tmp_path / "p.json", "--json").json
        for source in (recording, trace)
    ]
    assert plans[0]["layout_hash"] == plans[1]["layout_hash"]


def test_a_plan_prints_what_the_contract_names(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    ran = moeplan(
        "plan", recording, "--gpus", 4, "--slots-per-gpu", 12, "--window-by", "domain", "--holdout", 0.25,
        "--out", tmp_path / "p.json", "--json",
    )  # fmt: skip
    summary = ran.json
    assert {
        "status", "slots_per_gpu", "metrics", "bound", "gap", "baselines", "moves", "solve_seconds", "sources",
        "warnings",
    } <= set(summary)  # fmt: skip
    assert set(summary["baselines"]) == {"trivial", "random", "eplb", "hot_replication"}
    assert summary["bound"]["proven"] is True
    assert summary["metrics"]["local_gpu"] <= summary["bound"]["local_gpu"] + 1e-9
    assert summary["metrics"]["holdout"]["local_gpu"] > summary["baselines"]["trivial"]["holdout"]["local_gpu"]
    assert len(summary["metrics"]["windows"]) == 16


def test_evaluating_a_plan_gives_the_plans_own_figures(moeplan: Moeplan, plan: Path, recording: Path) -> None:
    written = json.loads(plan.read_text())
    ran = moeplan("evaluate", plan, recording, "--gpus", 4, "--json")
    assert ran.json["metrics"]["local_gpu"] == pytest.approx(written["metrics"]["local_gpu"])
    assert ran.json["metrics"]["imbalance"] == pytest.approx(written["metrics"]["imbalance"])


def test_equal_runs_write_equal_files(moeplan: Moeplan, recording: Path, plan: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    moeplan("plan", recording, "--gpus", 4, "--slots-per-gpu", 12, "--out", again, "--json")
    assert again.read_bytes() == plan.read_bytes()


def test_the_current_layout_stays_when_demand_does(
    moeplan: Moeplan, recording: Path, plan: Path, tmp_path: Path
) -> None:
    ran = moeplan(
        "plan", recording, "--gpus", 4, "--slots-per-gpu", 12, "--current", plan, "--out", tmp_path / "q.json", "--json"
    )
    assert ran.json["moves"]["moved_slots"] == 0


def test_a_missed_target_exits_4_and_still_writes(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    arguments = ["plan", recording, "--gpus", 4, "--slots-per-gpu", 12, "--out", out, "--json"]
    missed = moeplan(*arguments, "--local-target", 0.9)
    assert (missed.code, missed.json["status"]) == (4, "target_missed")
    assert out.exists()
    assert moeplan(*arguments, "--local-target", 0.3).code == 0


def test_fit_finds_the_fewest_slots(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    fitted = moeplan("plan", recording, "--gpus", 2, "--fit", "--out", tmp_path / "p.json", "--json").json
    assert fitted["metrics"]["local_gpu"] >= 0.6
    one_less = moeplan(
        "plan", recording, "--gpus", 2, "--slots-per-gpu", fitted["slots_per_gpu"] - 1, "--local-target", 0.6,
        "--out", tmp_path / "q.json", "--json",
    )  # fmt: skip
    assert one_less.code == 4


def test_diff_export_and_report(moeplan: Moeplan, plan: Path, tmp_path: Path) -> None:
    layout, page = tmp_path / "layout.json", tmp_path / "plan.html"
    assert moeplan("export", plan, "--out", layout).code == 0
    assert list(json.loads(layout.read_text())) == ["physical_to_logical_map"]
    same = moeplan("diff", plan, layout, "--gpus", 4, "--json").json
    assert same["moved_slots"] == 0
    trivial = write_json(tmp_path / "t.json", {"physical_to_logical_map": [[p % 32 for p in range(48)]] * 6})
    moved = moeplan("diff", trivial, plan, "--gpus", 4, "--expert-bytes", 10, "--json").json
    assert moved["moved_slots"] > 0
    assert moved["moved_bytes"] == 10 * moved["moved_slots"]
    assert moeplan("report", plan, "--out", page).code == 0
    assert page.read_text().startswith("<!doctype html>")


def test_outputs_that_cannot_be_written_leave_nothing(moeplan: Moeplan, recording: Path, tmp_path: Path) -> None:
    moeplan.refused(
        "plan", recording, "--gpus", 4, "--out", tmp_path / "no" / "such" / "p.json", code="OUTPUT_NOT_WRITABLE"
    )
    moeplan.refused("trace", "info", tmp_path / "absent.npz", code="INPUT_NOT_FOUND")
    moeplan.refused("trace", "info", tmp_path / ("long" * 100), code="UNREADABLE_DUMP")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["plan.txt", "plan", "plan.JSON", ".json"])
def test_a_plan_is_written_under_a_name_of_json(moeplan: Moeplan, recording: Path, tmp_path: Path, name: str) -> None:
    moeplan.refused("plan", recording, "--gpus", 4, "--out", tmp_path / name, code="BAD_OPTION")
    assert list(tmp_path.iterdir()) == []


def test_a_loop_of_links_is_refused(moeplan: Moeplan, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    moeplan.refused("trace", "info", loop, code="UNREADABLE_DUMP")
    moeplan.refused("diff", loop, loop, "--gpus", 2, code="UNREADABLE_DUMP")


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--local-target", "1.5", "BAD_OPTION"),
        ("--max-imbalance", "0.5", "BAD_OPTION"),
        ("--capacity-factor", "0", "BAD_OPTION"),
        ("--max-overflow", "1.5", "BAD_OPTION"),
        ("--max-overflow", "-0.1", "BAD_OPTION"),
        ("--holdout", "1.2", "BAD_OPTION"),
        ("--window-by", "weeks", "BAD_OPTION"),
        ("--seed", "-1", "BAD_OPTION"),
        ("--seed", "2147483648", "BAD_OPTION"),
        ("--max-imbalance", "inf", "BAD_OPTION"),
        ("--max-imbalance", "1e308", "BAD_OPTION"),
        ("--capacity-factor", "1e308", "BAD_OPTION"),
        ("--time-limit", "inf", "BAD_OPTION"),
        ("--threads", "99999999999999999999", "BAD_OPTION"),
        ("--expert-groups", "0", "BAD_OPTION"),
        ("--expert-bytes", "99999999999999999999", "BAD_OPTION"),
        ("--draft-experts", "0", "BAD_OPTION"),
        ("--gpus", "99999999999999999999", "BAD_TOPOLOGY"),
        ("--live-gpus", "\u00b2", "BAD_OPTION"),
        ("--threads", "0", "BAD_OPTION"),
        ("--time-limit", "0", "BAD_OPTION"),
        ("--gpus", "0", "GPUS_NOT_POSITIVE"),
        ("--live-gpus", "0,0", "BAD_OPTION"),
    ],
)
def test_options_out_of_range(
    option: str, value: str, code: str, moeplan: Moeplan, recording: Path, tmp_path: Path
) -> None:
    moeplan.refused("plan", recording, "--gpus", 4, "--out", tmp_path / "p.json", option, value, code=code)
    assert list(tmp_path.iterdir()) == []


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("moeplan")
    ran = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "Mixture-of-Experts" in ran.stdout
    wrong = subprocess.run([command, "plan", "--gpus", "x"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_a_plan_per_window_beats_one_plan_for_all_in_its_own_window(
    moeplan: Moeplan, recording: Path, tmp_path: Path
) -> None:
    arguments = ["plan", recording, "--gpus", 4, "--slots-per-gpu", 10, "--window-by", "domain", "--json"]
    ran = moeplan(*arguments, "--per-window", "--out", tmp_path / "p.json")
    together = moeplan(*arguments, "--out", tmp_path / "all.json").json
    plans = ran.json["plans"]
    assert len(plans) == 16
    assert (tmp_path / "p.python.json").exists()
    for alone in plans:
        (window,) = alone["metrics"]["windows"]
        (same,) = (each for each in together["metrics"]["windows"] if each["name"] == window["name"])
        assert window["local_gpu"] > same["local_gpu"]


def test_window_names_cannot_lead_out_of_the_folder(moeplan: Moeplan, tmp_path: Path) -> None:
    names = np.array(["../../etc/passwd", "/etc/passwd", "a b", "a?b"])
    np.savez(tmp_path / "counts.npz", counts=np.arange(1, 4 * 2 * 4 + 1).reshape(4, 2, 4), window_names=names)
    folder = tmp_path / "plans"
    folder.mkdir()
    ran = moeplan("plan", tmp_path / "counts.npz", "--gpus", 2, "--per-window", "--out", folder / "p.json", "--json")
    assert ran.code == 0
    written = sorted(path.name for path in folder.iterdir())
    assert written == ["p.a-b-3.json", "p.a-b.json", "p.etc-passwd-1.json", "p.etc-passwd.json"]
