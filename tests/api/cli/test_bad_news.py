"""What the command line says when something is wrong: one sentence with a code, whatever it was given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.cli.command import Moeplan, write_json

COMMAND = Path(sys.executable).with_name("moeplan")
COUNTS = {"logical_count": [[40, 10, 30, 20, 5, 15, 25, 35]]}


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    return write_json(tmp_path / "counts.json", COUNTS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["trace"],
        ["trace", "nonsense"],
        ["plan"],
        ["plan", "x.json", "--gpus", "2"],
        ["plan", "x.json", "--gpus", "two", "--out", "p.json"],
        ["plan", "x.json", "--gpus", "9" * 5000, "--out", "p.json"],
        ["plan", "x.json", "--gpus", "2", "--out"],
        ["plan", "x.json", "--gpus", "2", "--out", "p.json", "--objective", "speed"],
    ],
)
def test_usage_errors_are_one_sentence(arguments: list[str], moeplan: Moeplan) -> None:
    line = moeplan.refused(*arguments, code="USAGE")
    assert "--help" in line
    assert len(line) < 1200


def test_no_arguments_are_answered_with_help(moeplan: Moeplan) -> None:
    ran = moeplan()
    assert (ran.code, ran.err) == (0, "")
    assert "compare" in ran.out


HOSTILE_NAMES = ["\x1b[31mred", "two\nSTATUS: lines", "\rback", "reordered\u202egnp", "[bold]markup[/bold]"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_file_names_cannot_steer_the_terminal(name: str, moeplan: Moeplan, tmp_path: Path) -> None:
    name = name.replace("/", "_")
    recording = write_json(tmp_path / f"{name}.json", COUNTS)
    spoilt = tmp_path / f"spoilt {name}.json"
    spoilt.write_text("{")
    moeplan.refused("trace", "info", spoilt, code="BAD_JSON")
    out = tmp_path / f"plan {name}.json"
    for ran in (
        moeplan("trace", "info", recording),
        moeplan("plan", recording, "--gpus", 2, "--out", out),
        moeplan("diff", out, out, "--gpus", 2),
    ):
        assert ran.code == 0
        lines = (ran.out + ran.err).split("\n")
        assert all(line.isprintable() for line in lines)
        assert not any(line.startswith("STATUS") for line in lines)


def test_names_that_are_no_text_are_printed_and_planned(counts: Path, tmp_path: Path) -> None:
    recording = tmp_path / os.fsdecode(b"caf\xe9.json")
    counts.rename(recording)
    plan, page = tmp_path / "p.json", tmp_path / "page.html"
    for arguments in (
        ["trace", "info", recording],
        ["trace", "import", recording, "--out", tmp_path / "t.parquet"],
        ["plan", recording, "--gpus", "2", "--out", plan],
        ["report", plan, "--out", page],
    ):
        for encoding in ("utf-8", "ascii"):
            environment = {**os.environ, "PYTHONIOENCODING": encoding}
            ran = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, env=environment, check=False)
            assert ran.returncode == 0, ran.stderr
    assert "caf" in page.read_text()


def test_a_reader_that_leaves_early_is_no_error(counts: Path) -> None:
    ran = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$1" trace info "$2" | true', "-", COMMAND, counts],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")


def test_standard_output_that_cannot_be_written_is_told(counts: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [COMMAND, "trace", "info", counts, "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ran.returncode == 2
    assert ran.stderr.startswith("SYSTEM_REFUSED: ")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_signals_end_a_command_without_leavings(
    number: signal.Signals, code: int, counts: Path, moeplan: Moeplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "trace.parquet"
    out.write_text("as before")
    # A test run in the background, or under nohup, ignores these; the command then rightly does so too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def interrupted(path: Path) -> None:
        assert path.suffix == ".tmp"
        assert path.stat().st_size > 0
        signal.raise_signal(number)

    monkeypatch.setattr("profiler.files._flush_to_disk", interrupted)
    ran = moeplan("trace", "import", counts, "--out", out)
    assert (ran.code, len(ran.err.splitlines())) == (code, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"counts.json", "trace.parquet"}
    assert out.read_text() == "as before"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
