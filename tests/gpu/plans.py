"""Plans by ``moeplan plan`` from single tokens' routing, several at a time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placement.errors import CodedError
from placement.layout import Layout
from profiler.formats import read_layout
from tests.gpu.commands import moeplan
from tests.gpu.layouts import step_of_token
from tests.gpu.machine import Machine
from tests.gpu.traffic import Routed

AT_ONCE = 12
CORES_EACH = 4


@dataclass(frozen=True)
class WantedPlan:
    """One plan to make.

    Attributes
    ----------
    name, objective : str
    trace : Path
        Written by :func:`write_trace`.
    slots_per_gpu : int or None
        None: as few as reach ``local_target``.
    window_by : str
        ``file`` plans for all of the trace together, ``steps:1`` for every step of it.
    local_target : float
    step : tuple
        More words for the command, that name the step whose time is predicted.
    """

    name: str
    objective: str
    trace: Path
    slots_per_gpu: int | None
    window_by: str = "file"
    local_target: float = 0.6
    step: tuple[object, ...] = ()


@dataclass(frozen=True)
class MadePlan:
    """What came of it.

    Attributes
    ----------
    wanted : WantedPlan
    layout : Layout or None
        None when the command failed: this moeplan does not know the objective, say.
    summary : dict
        What ``moeplan plan --json`` printed.
    error : str
    """

    wanted: WantedPlan
    layout: Layout | None
    summary: dict[str, Any]
    error: str = ""


def write_trace(file: Path, routed: Routed, *, experts: int, tokens_per_step: int | None) -> Path:
    """Write tokens with their homes and steps as a token trace, one request per home."""
    np.savez_compressed(
        file,
        topk=np.ascontiguousarray(routed.experts_TLK.transpose(1, 0, 2)).astype(np.uint8),
        request_id=routed.source_T,
        req_source=np.arange(int(routed.source_T.max()) + 1),
        step=step_of_token(routed, tokens_per_step),
        num_experts=experts,
    )
    return file


def make_plans(
    machine: Machine, wanted: Sequence[WantedPlan], *, model: Path, hardware: Path | str, time_limit_s: float
) -> list[MadePlan]:
    """Make plans side by side; one that fails is an answer too.

    Parameters
    ----------
    machine, wanted
    model
        Its ``config.json``.
    hardware
        Profile that times are predicted with, a file or a preset's name.
    time_limit_s
        For each plan.
    """
    common = ("--model", model, "--hardware", hardware, "--time-limit", time_limit_s)
    at_once = 1 if machine.device == "cpu" else max(1, min(AT_ONCE, (os.cpu_count() or 1) // CORES_EACH))
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda plan: _make(machine, plan, common), wanted))


def _make(machine: Machine, wanted: WantedPlan, common: tuple[object, ...]) -> MadePlan:
    fewest = wanted.slots_per_gpu is None
    out = wanted.trace.with_name(f"plan-{wanted.name}-{wanted.slots_per_gpu or 'fewest'}.json".replace(" ", "-"))
    slots = ("--fit", "--local-target", wanted.local_target) if fewest else ("--slots-per-gpu", wanted.slots_per_gpu)
    goal = ("--objective", wanted.objective, "--window-by", wanted.window_by, *wanted.step)
    try:
        summary = moeplan(machine, "plan", wanted.trace, "--gpus", machine.gpus, *slots, *goal, *common, "--out", out)
        layout, _notices = read_layout(out, gpus=machine.gpus, experts=None)
    except (RuntimeError, ValueError, OSError, subprocess.SubprocessError, CodedError) as error:
        return MadePlan(wanted, None, {}, str(error)[-600:])
    return MadePlan(wanted, layout, summary)
