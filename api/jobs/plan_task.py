"""Solving a plan, in a process of its own."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Protocol

from api.jobs.checkpoints import CheckpointedMap
from api.jobs.linked_files import linked
from api.jobs.search_course import CourseTeller
from api.jobs.task_process import Json
from api.planning import plan_from_files
from api.service.plan_options import read_options_of, request_of
from api.service.search_course import SEARCH
from profiler.plan_file import write_plan


class Report(Protocol):
    """Where a task tells how it goes; see :class:`api.jobs.tasks.Report`."""

    def __call__(self, share: float, step: str) -> None: ...

    def event(self, kind: str, data: Json) -> None: ...


def run(request: Json, report: Report) -> Json:
    """Plan from recordings and write the plan.

    Parameters
    ----------
    request
        ``inputs``, ``tests``: name and path of every recording to plan and to judge on. ``options``: as a plan keeps
        them, see :mod:`api.service.plan_options`. ``current``: path of the layout that runs now, or None. ``costs``:
        cost matrix, or None. ``checkpoints``: folder for finished layers. ``out``: path of the plan.
    """
    searched = ""

    def on_done(taken: int, run: int) -> None:
        nonlocal searched
        before = f", {taken} of them before the worker died" if taken else ""
        searched = f"{taken + run} {'batch' if taken + run == 1 else 'batches'} of layers searched{before}"

    course = CourseTeller(lambda point: report.event(SEARCH, point))

    def around_map(inner: Any) -> CheckpointedMap:
        return CheckpointedMap(Path(request["checkpoints"]), inner, on_done=on_done)

    with tempfile.TemporaryDirectory(prefix="moeplan-plan-") as folder:
        inputs = linked(request["inputs"], Path(folder) / "inputs")
        asked = request_of(
            request["options"],
            test=tuple(linked(request["tests"], Path(folder) / "tests")),
            topology_file=json_file(request["costs"], Path(folder) / "costs.json"),
            current=_current(request["current"], Path(folder) / "current"),
        )
        plan = plan_from_files(
            inputs,
            read_options_of(request["options"]),
            asked,
            progress=lambda share: report(0.98 * share, searched or "reading and bounding"),
            around_map=around_map,
            watch=course,
        )
    course.end()
    write_plan(plan, Path(request["out"]))
    return {
        "status": str(plan.status),
        "layout_hash": plan.layout.hash,
        "local_gpu": plan.metrics.local_gpu,
        "imbalance": plan.metrics.worst_window.imbalance,
        "gap": plan.gap,
        "moved_slots": plan.moves.moved_slots,
        "solve_seconds": plan.solve_seconds,
        "warnings": [notice.to_dict() for notice in plan.notices],
        "pareto": [point.to_dict() for point in plan.pareto],
    }


def json_file(value: object, path: Path) -> Path | None:
    """Write a value to a file, if there is one, and return its path."""
    if value is None:
        return None
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def _current(stored: str | None, folder: Path) -> Path | None:
    return None if stored is None else linked([{"name": "current.json", "path": stored}], folder)[0]
