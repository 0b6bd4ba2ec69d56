"""The main job on a laptop: record, plan, push, measure again, against the replay engine over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from api.loading import read_options
from api.plan_request import PlanRequest
from api.planning import plan_from_files
from api.report import render_report
from placement.plan import Plan
from profiler.engine.capture import capture
from profiler.engine.client import EngineClient
from profiler.engine.contract_measured import Measured
from profiler.engine.history import LayoutHistory
from profiler.engine.push import PushResult, push
from profiler.errors import EngineBusy
from profiler.files import write_text
from profiler.inputs import open_inputs
from profiler.plan_file import write_plan
from profiler.recordings import MIXED, recording_path
from profiler.replay import running_replay
from profiler.trace import TraceReader
from profiler.writers.parquet import import_trace

GPUS = 8
SLOTS_PER_GPU = 16
# Half of the recording that the replay engine goes through: a plan from fewer steps is one for traffic of its own.
RECORDED_STEPS = 200
WINDOW_STEPS = 50
MEASURED_STEPS = 160
POLL_S = 0.1
MEASURING_LIMIT_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoResult:
    """What the demo did.

    Attributes
    ----------
    plan : Plan
    before, after : Measured
        Dispatch counted by the engine under its first layout and after the push.
    pushed : PushResult
    trace_file, plan_file, report_file : Path
    """

    plan: Plan
    before: Measured
    after: Measured
    pushed: PushResult
    trace_file: Path
    plan_file: Path
    report_file: Path


def run_demo(folder: Path, *, seed: int, say: Say) -> DemoResult:
    """Run the whole loop and write trace, plan and report into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (reader,) = open_inputs([recording_path(MIXED)], read_options())
    return _loop(reader, folder, seed=seed, say=say)


def _loop(reader: TraceReader, folder: Path, *, seed: int, say: Say) -> DemoResult:
    trace_file, plan_file, report_file = (folder / name for name in ("trace.parquet", "plan.json", "plan.html"))
    with running_replay(reader, gpus=GPUS, slots_per_gpu=SLOTS_PER_GPU, homes="round-robin", seed=seed) as url:
        say(
            f"replay engine (simulated: recorded routing, real dispatch, no model) on {url}: {GPUS} GPUs x "
            f"{SLOTS_PER_GPU} slots"
        )
        with EngineClient(url) as client:
            recorded = capture(client, steps=RECORDED_STEPS, window_steps=WINDOW_STEPS)
            before = client.measured()
            import_trace([recorded], trace_file)
            say(
                f"recorded {recorded.steps} steps, {recorded.tokens} tokens, {len(recorded.windows)} windows, by home "
                f"GPU -> {trace_file}"
            )
            request = PlanRequest(gpus=GPUS, slots_per_gpu=SLOTS_PER_GPU, local_target=0.6, seed=seed)
            plan = plan_from_files([trace_file], read_options(), request)
            write_plan(plan, plan_file)
            write_text(report_file, render_report(plan))
            pushed = push(client, plan.layout, history=LayoutHistory(folder / "layouts"))
            after = _measure(client, steps=MEASURED_STEPS)
    return DemoResult(
        plan=plan,
        before=before,
        after=after,
        pushed=pushed,
        trace_file=trace_file,
        plan_file=plan_file,
        report_file=report_file,
    )


def _measure(client: EngineClient, *, steps: int) -> Measured:
    """Wait until the engine has served ``steps`` steps under its present layout."""
    limit = time.monotonic() + MEASURING_LIMIT_S
    while True:
        measured = client.measured()
        if measured.steps >= steps and not measured.push_in_progress:
            return measured
        if time.monotonic() > limit:
            raise EngineBusy(f"the engine served {measured.steps} of {steps} steps in {MEASURING_LIMIT_S:g} s.")
        time.sleep(POLL_S)
