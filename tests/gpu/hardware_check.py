"""``moeplan calibrate`` on this machine, and experts' times it predicts beside points that it was not fitted on."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from placement.hardware import HardwareProfile
from profiler.hardware import read_hardware, write_hardware
from tests.gpu.commands import moeplan
from tests.gpu.expert_points import POINTS, Points
from tests.gpu.machine import PROJECT, Machine
from tests.gpu.results import Results

CALIBRATE_LIMIT_S = 240.0
POINTS_LIMIT_S = 180.0
KERNELS = ("grouped_s", "sglang_s", "sglang_graph_s")
BASE = "h200"


def check_calibration(machine: Machine, results: Results) -> None:
    """Measure a profile into the run's folder, time the points, and keep what differs.

    On a CPU the command must refuse; the preset takes the profile's place, so that the rest is rehearsed.

    Raises
    ------
    RuntimeError
        The command or the timing failed.
    """
    file = results.folder / "hardware.toml"
    profile = _calibrated(machine, results, file) if machine.device == "cuda" else _refused(machine, results, file)
    points = POINTS[machine.device]
    timed = _timed(machine)
    for finding in compare_points(profile, points, timed):
        results.add("expert time", **finding)
    results.add("expert times", profile=profile.name, **errors_of(results.of("expert time")))


def compare_points(
    profile: HardwareProfile, points: Points, timed: Mapping[str, Sequence[float]]
) -> list[dict[str, float]]:
    """Return predicted and measured microseconds of every point, with the relative errors of the prediction."""
    found = []
    for index, (rows, active) in enumerate(points.rows_active):
        predicted_s = float(profile.expert.seconds(rows, active, expert=points.expert))
        measured = {name: timed[name][index] for name in KERNELS}
        found.append(
            {
                "rows": rows,
                "active_experts": active,
                "predicted_us": round(1e6 * predicted_s, 1),
                **{f"{name[:-2]}_us": round(1e6 * each, 1) for name, each in measured.items()},
                **{f"{name[:-2]}_error": round(predicted_s / each - 1, 4) for name, each in measured.items()},
            }
        )
    return found


def errors_of(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return median and worst absolute errors by kernel."""
    errors = {}
    for name in KERNELS:
        each = [abs(one[f"{name[:-2]}_error"]) for one in found]
        errors |= {f"{name[:-2]}_median": round(statistics.median(each), 4), f"{name[:-2]}_worst": max(each)}
    return errors


def _calibrated(machine: Machine, results: Results, file: Path) -> HardwareProfile:
    started_s = time.monotonic()
    said = moeplan(machine, "calibrate", "--base", BASE, "--out", file, limit_s=CALIBRATE_LIMIT_S)
    took_s = time.monotonic() - started_s
    figures = {key: said["profile"][key] for key in ("gpu", "memory_gib", "expert", "prefill", "decode")}
    fit = {"gpus": said["gpus"], "fit_median": said["median_error"], "fit_worst": said["worst_error"]}
    results.add("hardware", took_s=round(took_s, 1), **fit, **figures)
    return read_hardware(str(file))


def _refused(machine: Machine, results: Results, file: Path) -> HardwareProfile:
    try:
        moeplan(machine, "calibrate", "--out", file)
    except RuntimeError as error:
        if "NO_GPU" not in str(error) or file.exists():
            raise
        results.add("hardware", refused=str(error)[-200:])
    else:
        raise RuntimeError("moeplan calibrate wrote a profile on a machine without GPUs")
    write_hardware(read_hardware(BASE), file)
    return read_hardware(str(file))


def _timed(machine: Machine) -> dict[str, list[float]]:
    variables = machine.engine_variables(machine.root, all_to_all=False)
    path = os.pathsep.join([variables["PYTHONPATH"], *map(str, machine.tool_folders)])
    command = [machine.engine_python, "-m", "tests.gpu.expert_points", machine.device]
    ended = subprocess.run(
        command,
        cwd=PROJECT,
        env={**variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=POINTS_LIMIT_S,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"experts were not timed: {ended.stderr.strip()[-1500:]}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))
