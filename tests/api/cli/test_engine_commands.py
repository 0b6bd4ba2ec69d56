"""Commands that talk to an engine, on the replay engine."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.app import run
from profiler.recordings import MIXED, recording_path
from profiler.replay import running_replay
from tests.api.cli.command import Moeplan
from tests.profiler.replay.traces import made_up, shipped


@pytest.fixture(scope="module")
def dump_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dumps")


@pytest.fixture(scope="module")
def engine(dump_dir: Path) -> Iterator[str]:
    trace = shipped("tiny_moe_mixed")
    with running_replay(trace, gpus=4, slots_per_gpu=12, steps_per_s=50, dump_dir=dump_dir) as url:
        yield url


# ------------------------------------------------------------------ doctor


def test_the_doctor_prints_what_works(moeplan: Moeplan, engine: str) -> None:
    ran = moeplan("doctor", "--engine", engine)
    assert ran.code == 0
    assert "(simulated)" in ran.out
    assert "ready to record and push" in ran.out
    found = moeplan("doctor", "--engine", engine, "--json").json
    assert found["ready"] is True
    assert {check["name"]: check["state"] for check in found["checks"]}["push"] == "works"


def test_the_doctor_ends_with_5_when_something_is_missing(moeplan: Moeplan) -> None:
    with running_replay(made_up([(4, 2)]), gpus=2, slots_per_gpu=5, steps_per_s=0, dispatch=None) as url:
        ran = moeplan("doctor", "--engine", url)
    assert ran.code == 5
    assert "--ep-dispatch-algorithm dynamic" in ran.out
    assert "not ready" in ran.out


def test_the_doctor_says_that_nothing_answers(moeplan: Moeplan) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        moeplan.refused("doctor", "--engine", url, code="ENGINE_UNREACHABLE")


# ------------------------------------------------------------------ capture


def test_dumps_of_the_stock_recorder_become_a_trace(
    moeplan: Moeplan, engine: str, dump_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trace.parquet"
    ran = moeplan("capture", "--engine", engine, "--dump-dir", dump_dir, "--seconds", 0.5, "--out", out, "--json")
    assert ran.code == 0, ran.err
    assert [Path(file).parent for file in ran.json["files"]] == [dump_dir]
    assert ran.json["simulated"] is True
    (facts,) = moeplan("trace", "info", out, "--json").json["inputs"]
    assert (facts["kind"], facts["experts"], facts["source_ranks"]) == ("counts", 32, None)
    assert facts["routed_tokens"] > 0


def test_a_capture_through_the_plugin_keeps_its_warnings_apart(moeplan: Moeplan, engine: str, tmp_path: Path) -> None:
    out = tmp_path / "trace.parquet"
    ran = moeplan("capture", "--engine", engine, "--steps", 20, "--out", out, "--json")
    assert ran.warning_codes == {"ENGINE_UNPROTECTED"}
    assert "ENGINE_UNPROTECTED" not in json.dumps(moeplan("trace", "info", out, "--json").json)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--steps", 5], "BAD_OPTION"),
        (["--window-steps", 5, "--seconds", 1], "BAD_OPTION"),
        ([], "BAD_OPTION"),
        (["--seconds", "nan"], "BAD_OPTION"),
        (["--seconds", "x"], "USAGE"),
    ],
)
def test_options_that_the_stock_recorder_lacks_are_refused(
    moeplan: Moeplan, engine: str, dump_dir: Path, tmp_path: Path, options: list[object], code: str
) -> None:
    out = tmp_path / "trace.parquet"
    moeplan.refused("capture", "--engine", engine, "--dump-dir", dump_dir, "--out", out, *options, code=code)
    assert not out.exists()


def test_an_output_that_cannot_be_written_is_noticed_before_recording(
    moeplan: Moeplan, engine: str, dump_dir: Path, tmp_path: Path
) -> None:
    before = set(dump_dir.iterdir())
    out = tmp_path / "nowhere" / "trace.parquet"
    for how in (["--dump-dir", dump_dir, "--seconds", 60], ["--seconds", 60]):
        moeplan.refused("capture", "--engine", engine, "--out", out, *how, code="OUTPUT_NOT_WRITABLE")
    assert set(dump_dir.iterdir()) == before


# ------------------------------------------------------------------ sample


def test_prompts_become_a_trace_of_tokens(moeplan: Moeplan, engine: str, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "sample.parquet"
    prompts.write_text("first prompt\nsecond one\n")
    ran = moeplan("sample", "--engine", engine, "--prompts", prompts, "--max-new-tokens", 3, "--out", out, "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["requests"], ran.json["failed"], ran.json["simulated"]) == (2, 0, True)
    assert ran.json["tokens"] == len("first prompt") + len("second one") + 2 * 2
    (facts,) = moeplan("trace", "info", out, "--json").json["inputs"]
    assert (facts["kind"], facts["source_ranks"], facts["requests"]) == ("tokens", 4, 2)


def test_a_sample_needs_the_engines_switch(moeplan: Moeplan, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one")
    with running_replay(made_up([(4, 2)]), gpus=2, slots_per_gpu=5, routed_experts=False) as url:
        line = moeplan.refused(
            "sample", "--engine", url, "--prompts", prompts, "--out", tmp_path / "t.parquet",
            code="ROUTED_EXPERTS_DISABLED",
        )  # fmt: skip
    assert "--enable-return-routed-experts" in line


# ------------------------------------------------------------------ files instead of pushes


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plan") / "plan.json"
    recording = str(recording_path(MIXED))
    arguments = ["plan", recording, "--gpus", "4", "--slots-per-gpu", "12", "--time-limit", "5", "--out", str(out)]
    assert run(arguments) == 0
    return out


def test_a_restart_is_printed_with_the_flags_that_change(
    moeplan: Moeplan, engine: str, plan: Path, tmp_path: Path
) -> None:
    out = tmp_path / "layout.json"
    ran = moeplan("export", plan, "--out", out, "--engine", engine, "--json")
    assert ran.code == 0, ran.err
    changes = {flag["name"]: flag["changes"] for flag in ran.json["flags"]}
    assert changes == {
        "--ep-size": False,
        "--ep-num-redundant-experts": False,
        "--ep-dispatch-algorithm": False,
        "--init-expert-location": True,
    }
    assert str(out) in ran.json["command_line"]
    printed = moeplan("export", plan, "--out", out, "--print-restart")
    assert "--ep-num-redundant-experts 16" in printed.out
    assert moeplan("export", plan, "--out", out, "--json").json == {"out": str(out), "warnings": []}
    moeplan.refused(
        "export", plan, "--format", "vllm", "--out", tmp_path / "x.jsonl", "--print-restart", code="BAD_OPTION"
    )


def test_the_doctor_says_whether_a_plan_runs(moeplan: Moeplan, plan: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout.json"
    moeplan("export", plan, "--out", layout)
    with running_replay(shipped("tiny_moe_mixed"), gpus=4, slots_per_gpu=12, steps_per_s=0) as url:
        before = moeplan("doctor", "--engine", url, "--layout", plan)
        assert moeplan("push", plan, "--engine", url).code == 0
        after = [moeplan("doctor", "--engine", url, "--layout", file).code for file in (plan, layout)]
    assert (before.code, after) == (5, [0, 0])
    assert "LAYOUT_NOT_APPLIED" in before.out


def test_a_difference_takes_the_number_of_gpus_from_a_plan(moeplan: Moeplan, plan: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout.json"
    moeplan("export", plan, "--out", layout)
    for pair in ((plan, plan), (plan, layout), (layout, plan)):
        assert moeplan("diff", *pair, "--json").json["moved_slots"] == 0
    assert "--gpus" in moeplan.refused("diff", layout, layout, code="BAD_OPTION")
    moeplan.refused("diff", plan, plan, "--gpus", 8, code="LAYOUT_MISMATCH")
