"""The whole loop over moeplan commands on a live engine: record, plan, push under load, verify, measure, roll back."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.api.cli.command import Moeplan, write_json
from tests.engine.engine_server import EngineServer
from tests.engine.test_all_to_all import counted_pairs
from tests.engine.test_demand import LAYERS
from tests.engine.test_placement import random_map, read_placement, tensors_on_wrong_experts
from tests.engine.traffic import EIGHT_PROMPTS, generate, greedy_at_once, prompts, under_load

TRAFFIC = prompts(40, seed=61)
WITHIN = 0.01
"""Relative difference that the issue allows between predicted and measured figures."""


def send_traffic(engine: EngineServer) -> None:
    """Send the same requests, each at the same home rank, whatever is cached."""
    engine.flush_cache()
    ranks = read_placement(engine, checksums=0).ep_size if engine.home_ranks else 1
    fields = [{"routed_dp_rank": index % ranks} if ranks > 1 else {} for index in range(len(TRAFFIC))]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda pair: generate(engine, pair[0], new_tokens=3, **pair[1]), zip(TRAFFIC, fields, strict=True))
        )


@contextmanager
def capturing(engine: EngineServer, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command, which follows a recording until somebody stops it, and wait until it records."""
    command = [str(Path(sys.executable).parent / "moeplan"), "capture", "--engine", engine.url, "--out", str(out)]
    with subprocess.Popen([*command, "--seconds", "600", "--json"], stdout=subprocess.PIPE) as recording:
        started = "POST /moeplan/demand/start"
        before = engine.log_file.read_text(errors="replace").count(started)
        deadline = time.monotonic() + 60
        while engine.log_file.read_text(errors="replace").count(started) == before:
            assert recording.poll() is None, "the command ended before it recorded"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield recording


def captured(engine: EngineServer, out: Path) -> Path:
    """Record exactly the traffic."""
    with capturing(engine, out) as recording:
        send_traffic(engine)
        assert engine.post("/moeplan/demand/stop").status_code == 200
        printed, _ = recording.communicate(timeout=60)
    assert recording.returncode == 0
    assert json.loads(printed)["simulated"] is False
    return out


def imbalance_of(loads_LG: npt.NDArray[np.int64]) -> float:
    return float(loads_LG.max(axis=1).sum() / loads_LG.mean(axis=1).sum())


def run_the_loop(engine: EngineServer, moeplan: Moeplan, folder: Path, *, plan_options: list[str]) -> None:
    before = read_placement(engine)
    reference = greedy_at_once(engine)
    trace = captured(engine, folder / "traffic.parquet")
    plan = folder / "plan.json"
    slots = ["--gpus", "2", "--slots-per-gpu", "12"]
    planned = moeplan(
        *("plan", trace, *slots, *plan_options, "--window-by", "none", "--time-limit", "5", "--out", plan, "--json")
    )
    assert planned.code == 0, planned.err

    with under_load(engine, clients=6) as load:
        pushed = moeplan("push", plan, "--engine", engine.url, "--layers-per-chunk", "1", "--json")
    assert pushed.code == 0, pushed.err
    assert load.failed == []
    assert load.answered
    assert (pushed.json["status"], pushed.json["weights_checked"]) == ("applied", True)
    after = read_placement(engine)
    assert after.layout_hash != before.layout_hash
    assert tensors_on_wrong_experts(before, after) == set()
    assert greedy_at_once(engine).equal_outputs(reference) == len(EIGHT_PROMPTS)

    loads_before_LG = engine.loads_LG(layers=LAYERS)
    pairs_before = counted_pairs(engine) if engine.home_ranks else (0, 0)
    send_traffic(engine)
    loads_LG = engine.loads_LG(layers=LAYERS) - loads_before_LG
    predicted = planned.json["metrics"]
    assert imbalance_of(loads_LG) == pytest.approx(predicted["imbalance"], rel=WITHIN)
    if engine.home_ranks:
        own, every = np.subtract(counted_pairs(engine), pairs_before)
        assert own / every == pytest.approx(predicted["local_gpu"], rel=WITHIN)
        assert predicted["local_gpu"] > 0.6

    back = moeplan("rollback", "--engine", engine.url, "--json")
    assert back.code == 0, back.err
    restored = read_placement(engine)
    assert (restored.layout_hash, restored.checksums) == (before.layout_hash, before.checksums)
    assert greedy_at_once(engine).equal_outputs(reference) == len(EIGHT_PROMPTS)


def test_the_loop_without_an_all_to_all(engine: EngineServer, moeplan: Moeplan, tmp_path: Path) -> None:
    run_the_loop(engine, moeplan, tmp_path, plan_options=["--dispatch", "even", "--objective", "balance"])


def test_the_loop_behind_an_all_to_all(all_to_all_engine: EngineServer, moeplan: Moeplan, tmp_path: Path) -> None:
    run_the_loop(all_to_all_engine, moeplan, tmp_path, plan_options=["--dispatch", "nearest-dynamic"])


def test_a_recording_of_a_killed_capture_is_named_and_taken_over(
    engine: EngineServer, moeplan: Moeplan, tmp_path: Path
) -> None:
    with capturing(engine, tmp_path / "lost.parquet") as recording:
        recording.kill()
    owner = f"process {recording.pid} on {socket.gethostname()}"
    out = tmp_path / "trace.parquet"
    recorded = ("capture", "--engine", engine.url, "--seconds", "3", "--out", out)
    assert owner in moeplan.refused(*recorded, code="ENGINE_BUSY")
    assert not (tmp_path / "lost.parquet").exists()
    with under_load(engine, clients=1):
        taken = moeplan(*recorded, "--take-over", "--json")
    assert taken.code == 0, taken.err
    assert taken.warning_codes >= {"TAKEN_OVER"}
    assert engine.post("/moeplan/demand/start", {"window_steps": 1}).status_code == 200, "nothing was left recording"
    engine.post("/moeplan/demand/stop")


@pytest.mark.parametrize("fault", ["map_only", "leave_last_tensor"])
def test_push_finds_weights_left_behind(engine: EngineServer, moeplan: Moeplan, tmp_path: Path, fault: str) -> None:
    """Cases U09 and U10: the engine says that all went well, and its map is the one that was pushed."""
    before = read_placement(engine)
    reference = greedy_at_once(engine)
    layout = write_json(tmp_path / "layout.json", {"physical_to_logical_map": random_map(before, seed=62)})
    with engine.fault(fault):
        sentence = moeplan.refused("push", layout, "--engine", engine.url, code="POST_PUSH_CHECK_FAILED")
        assert "should hold expert" in sentence
        assert greedy_at_once(engine).equal_outputs(reference) < len(EIGHT_PROMPTS)
        back = moeplan("rollback", "--engine", engine.url, "--json")
    assert back.code == 0, back.err
    assert read_placement(engine).checksums == before.checksums
    assert greedy_at_once(engine).equal_outputs(reference) == len(EIGHT_PROMPTS)
