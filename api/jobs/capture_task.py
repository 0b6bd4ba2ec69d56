"""Recording from an engine, in a process of its own: when it is ended, it stops the recording on its way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from api.jobs.import_task import facts_of_trace
from api.jobs.task_process import Json
from api.service.secret_references import follow
from profiler.engine.capture import capture
from profiler.engine.client import EngineClient
from profiler.engine.contract_demand import DemandWindow
from profiler.writers.parquet import import_trace


def run(request: Json, progress: Callable[[float, str], None]) -> Json:
    """Record by ``limits``, write the trace to ``out`` and say what it holds.

    ``resumed`` says that an earlier attempt of this job died: a recording that is open then is its own.
    """
    limits = request["limits"]
    served_steps, served_s = 0, 0.0

    def on_window(window: DemandWindow) -> None:
        nonlocal served_steps, served_s
        served_steps, served_s = served_steps + window.steps, served_s + window.seconds
        done = served_steps / limits["steps"] if limits.get("steps") else served_s / limits["seconds"]
        progress(min(0.9, 0.9 * done), f"{served_steps} engine steps recorded")

    keys = {name: follow(request[f"{name}_reference"]) for name in ("key", "read_key")}
    with EngineClient(request["url"], keys["key"], read_key=keys["read_key"], timeout_s=request["timeout_s"]) as client:
        progress(0.0, "recording")
        recorded = capture(client, **limits, take_over=request["resumed"], on_window=on_window)
    import_trace([recorded], Path(request["out"]))
    found = facts_of_trace(Path(request["out"]), name=request["name"])
    found["facts"]["simulated"] = recorded.simulated
    return found
