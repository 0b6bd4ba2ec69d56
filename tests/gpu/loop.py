"""The whole loop through moeplan's commands while requests run: capture, plan, push, verify, roll back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from profiler.engine.client import EngineClient
from tests.gpu.commands import moeplan
from tests.gpu.machine import Machine
from tests.gpu.results import Results
from tests.gpu.scale import Scale
from tests.gpu.server import Engine
from tests.gpu.streams import streaming


def run_loop(machine: Machine, engine: Engine, results: Results, scale: Scale) -> None:
    """Run the loop once under load.

    Raises
    ------
    RuntimeError
        A command failed, or the engine was not what the loop should have left.
    """
    folder = machine.root / engine.setup.name
    trace, plan = folder / "captured.parquet", folder / "plan.json"
    with EngineClient(engine.url) as client:
        before = client.placement(checksums=True)
        current = folder / "before.json"
        current.write_text(json.dumps({"physical_to_logical_map": before.map_LP.tolist()}))
        seconds: dict[str, float] = {}
        with streaming(machine, engine, streams=scale.loop_streams, new_tokens=scale.loop_tokens) as times:
            step = _Timed(machine, seconds)
            captured = step("capture", "--engine", engine.url, "--steps", scale.loop_steps, "--out", trace)
            goal = ["--objective", "locality" if engine.setup.all_to_all else "balance"]
            rule = ["--dispatch", "nearest-dynamic" if engine.setup.all_to_all else "even"]
            where = ["--gpus", before.ep_size, "--slots-per-gpu", before.slots // before.ep_size]
            planned = step("plan", trace, *where, *goal, *rule, "--current", current, "--out", plan)
            pushed = step("push", plan, "--engine", engine.url)
            again = step("push", plan, "--engine", engine.url)
            running = client.placement()
            back = step("rollback", "--engine", engine.url)
        after = client.placement(checksums=True)
    checks = {
        "pushed": pushed["status"] == "applied"
        and running.layout_hash == pushed["layout_hash"]
        and running.ranks_agree,
        "weights_checked": pushed["weights_checked"],
        "second_push_unchanged": again["status"] == "unchanged",
        "rolled_back": back["status"] == "applied" and after.layout_hash == before.layout_hash,
        "weights_as_before": after.checksums == before.checksums,
    }
    metrics = planned["metrics"]
    results.add(
        "loop",
        engine=engine.setup.name,
        dp_attention=engine.setup.dp_attention,
        checks=checks,
        captured_steps=captured["steps"],
        captured_tokens=captured["tokens"],
        imbalance_planned=metrics["imbalance"],
        imbalance_trivial=planned["baselines"]["trivial"]["imbalance"],
        changed_slots=pushed["changed_slots"],
        moved_slots=pushed["moved_slots"],
        push_s=pushed["move_seconds"],
        command_s=seconds,
        requests=times.requests,
        failed_requests=times.failed,
    )
    wrong = [name for name, held in checks.items() if not held]
    if wrong:
        raise RuntimeError(f"the loop on {engine.setup.name}: {', '.join(wrong)} did not hold")


class _Timed:
    """Runs commands and keeps how long each took, the start of Python included."""

    def __init__(self, machine: Machine, seconds: dict[str, float]) -> None:
        self._machine, self._seconds = machine, seconds
        self._run: Callable[..., dict[str, Any]] = moeplan

    def __call__(self, command: str, *words: object) -> dict[str, Any]:
        started_s = time.monotonic()
        answer = self._run(self._machine, command, *words)
        self._seconds[command] = round(time.monotonic() - started_s, 2)
        return answer
