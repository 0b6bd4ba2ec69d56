"""Work in a process beside the worker: it can be ended at any moment, whatever library it is in.

CP-SAT, torch and Arrow are C++; nothing interrupts them from inside. So plans are solved, and files of others read,
in a process of their own: ``python -m api.jobs.tasks``. It takes one JSON line, answers with JSON lines (progress, then
a value or an error), and ends by itself when the worker is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO, Any

Json = dict[str, Any]

POLL_S = 0.2
"""How often it is looked whether the job may go on."""

LONGEST_NOTE = 4000


class TaskFailed(Exception):
    """The process ended without an answer, or with an error."""

    def __init__(self, error: Json) -> None:
        self.error = error
        super().__init__(str(error.get("code")))


def run_task(
    name: str,
    request: Json,
    *,
    on_progress: Callable[[float, str], None],
    require_going_on: Callable[[], None],
    grace_s: float,
    on_event: Callable[[str, Json], None] | None = None,
) -> Json:
    """Run a task of :mod:`api.jobs.tasks` and return its value.

    Parameters
    ----------
    name, request
    on_progress
        Called with the share done and what is being done.
    require_going_on
        Called several times a second; what it raises ends the process and is raised here.
    grace_s
        Between asking the process to end and ending it.
    on_event
        Called with the kind and the data of whatever else the task tells.

    Raises
    ------
    TaskFailed
        With the error of the task, or what is known of how its process ended.
    """
    process = subprocess.Popen(  # noqa: S603  (our own module, in our own interpreter)
        [sys.executable, "-m", "api.jobs.tasks", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the worker's; processes of the task end with it
    )
    answers: SimpleQueue[Json | None] = SimpleQueue()
    notes: list[str] = []
    readers = [
        threading.Thread(target=_read_answers, args=(process.stdout, answers), daemon=True),
        threading.Thread(target=_read_notes, args=(process.stderr, notes), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        _send(process, request)
        return _follow(process, answers, notes, on_progress, on_event or _unheard, require_going_on)
    finally:
        _end(process, grace_s=grace_s)
        for reader in readers:
            reader.join(timeout=1.0)


def _send(process: subprocess.Popen[bytes], request: Json) -> None:
    if process.stdin is None:
        return
    with suppress(BrokenPipeError):  # it has ended already; why is in its answer or its notes
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()


def _follow(
    process: subprocess.Popen[bytes],
    answers: SimpleQueue[Json | None],
    notes: list[str],
    on_progress: Callable[[float, str], None],
    on_event: Callable[[str, Json], None],
    require_going_on: Callable[[], None],
) -> Json:
    looked_s = time.monotonic()
    while True:
        try:
            answer = answers.get(timeout=POLL_S)
        except Empty:
            answer = {}
        if answer is None:
            code = process.wait()
            said = " ".join("".join(notes).split())[-300:]
            raise TaskFailed({"code": "TASK_ENDED", "detail": _how_it_ended(code, said), "remedies": []})
        if "value" in answer:
            value: Json = answer["value"]
            return value
        if "error" in answer:
            raise TaskFailed(answer["error"])
        if "progress" in answer:
            on_progress(float(answer["progress"]), str(answer["step"]))
        if "event" in answer:
            on_event(str(answer["event"]), answer["data"])
        if time.monotonic() - looked_s >= POLL_S:
            looked_s = time.monotonic()
            require_going_on()


def _unheard(_: str, __: Json) -> None:
    """Nobody asked for events."""


def _how_it_ended(code: int, said: str) -> str:
    if code == -signal.SIGKILL:
        return "the process of the job was killed; was there too little memory?"
    by = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the process of the job ended with {by} and no answer{': ' + said if said else ''}."


def _end(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()  # the task unwinds when its line to us is cut
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read_answers(pipe: IO[bytes] | None, answers: SimpleQueue[Json | None]) -> None:
    if pipe is not None:
        for line in pipe:
            answers.put(json.loads(line))
    answers.put(None)


def _read_notes(pipe: IO[bytes] | None, notes: list[str]) -> None:
    for line in pipe or ():
        notes.append(line.decode("utf-8", errors="replace"))
        while sum(map(len, notes)) > LONGEST_NOTE and len(notes) > 1:
            notes.pop(0)
