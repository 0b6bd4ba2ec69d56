"""The other side of :mod:`api.jobs.task_process`: ``python -m api.jobs.tasks NAME`` does one task and ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import IO, Any

from api.cli.stopping import Terminated, termination_unwinds
from api.jobs.task_process import Json
from api.service.error_json import error_json
from placement.errors import CodedError
from profiler.files import disk_full

TASKS: Mapping[str, str] = {
    "plan": "api.jobs.plan_task",
    "size": "api.jobs.size_task",
    "import": "api.jobs.import_task",
    "capture": "api.jobs.capture_task",
}
"""Modules with a function ``run(request, report)``; imported when asked for, since some take seconds."""

UNWIND_S = 30.0
"""What is left of a task whose worker is gone ends after so long: C++ code does not unwind."""


class Report:
    """Tells the worker how a task goes: called with the share done and what is being done."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers = answers

    def __call__(self, share: float, step: str) -> None:
        _answer(self._answers, {"progress": share, "step": step})

    def event(self, kind: str, data: Json) -> None:
        """Tell of something that people who follow the job may want to know."""
        _answer(self._answers, {"event": kind, "data": data})


def main(arguments: list[str]) -> int:
    """Read the request, do the task, answer."""
    answers = _own_output()
    request: Json = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_live_with_worker, daemon=True).start()

    try:
        with termination_unwinds():
            run: Callable[[Json, Report], Json] = import_module(TASKS[arguments[0]]).run
            _answer(answers, {"value": run(request, Report(answers))})
    except CodedError as error:
        _answer(answers, {"error": error_json(error)})
    except OSError as error:
        full = disk_full(error)
        if full is None:
            raise
        _answer(answers, {"error": error_json(full)})
    except MemoryError:
        detail = "this needs more memory than the machine gives; try fewer windows."
        _answer(answers, {"error": {"code": "OUT_OF_MEMORY", "detail": detail, "remedies": []}})
    except Terminated:
        return 143
    return 0


def _own_output() -> IO[str]:
    """Keep standard output for answers: whatever else prints goes to standard error."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def _answer(answers: IO[str], message: Mapping[str, Any]) -> None:
    answers.write(json.dumps(message, allow_nan=False) + "\n")
    answers.flush()


def _live_with_worker() -> None:
    """Unwind when the worker closes its end of the line, or dies; end for certain a while later."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(UNWIND_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
