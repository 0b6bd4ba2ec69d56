"""``--workers``: what it may say, and that the commands take it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from api.workers import open_workers, parse_workers
from placement.errors import BadOption
from tests.api.cli.command import Moeplan, write_json


@pytest.fixture
def moeplan(capsys: pytest.CaptureFixture[str]) -> Moeplan:
    return Moeplan(capsys)


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    tokens_LE = np.random.default_rng(0).integers(1, 1000, (4, 16))
    return write_json(tmp_path / "counts.json", {"logical_count": tokens_LE.tolist()})


@pytest.mark.parametrize(("text", "workers"), [("1", 1), ("8", 8), ("1024", 1024), ("ray", "ray")])
def test_numbers_and_ray_are_read(text: str, workers: int | str) -> None:
    assert parse_workers(text) == workers


@pytest.mark.parametrize("text", ["0", "-1", "1025", "9999999999", "two", "", "1.5", "Ray", "²"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="--workers"):
        parse_workers(text)


def test_one_worker_is_this_process() -> None:
    with open_workers(1) as crew:
        assert crew is None


def test_a_plan_of_two_processes_is_the_plan_of_one(moeplan: Moeplan, counts: Path, tmp_path: Path) -> None:
    layouts = []
    for workers in ("1", "2"):
        out = tmp_path / f"{workers}.json"
        ran = moeplan("plan", counts, "--gpus", 4, "--slots-per-gpu", 5, "--workers", workers, "--out", out, "--json")
        assert ran.code == 0, ran.err
        layouts.append(json.loads(out.read_text(encoding="utf-8"))["physical_to_logical_map"])
    assert layouts[0] == layouts[1]


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_bad_workers_and_absent_ray_are_one_sentence(
    moeplan: Moeplan, counts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    out = ["--out", tmp_path / "plan.json"] if command == "plan" else []
    moeplan.refused(command, counts, "--gpus", 4, *out, "--workers", "many", code="BAD_OPTION")
    moeplan.refused(command, counts, "--gpus", 4, *out, "--workers", "ray", code="RAY_MISSING")
