"""Processes of a benchmark: started, told apart by their CPU time with everything below them, and ended. Linux only."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def started(
    command: list[str], *, log: Path, environment: Mapping[str, str], announces: str | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command in a session of its own while the block runs; its process, and the first line that it prints.

    Parameters
    ----------
    command
    log
        What it writes beside that; standard output goes there too when nothing is announced.
    environment
    announces
        How its first line begins, which is waited for.

    Raises
    ------
    RuntimeError
        It says something else or ends.
    """
    with log.open("ab") as notes:
        process = subprocess.Popen(
            command, stdout=notes if announces is None else subprocess.PIPE, stderr=notes, text=True, bufsize=1,
            env=dict(environment), start_new_session=True,
        )  # fmt: skip
    try:
        line = "" if announces is None or process.stdout is None else process.stdout.readline()
        if announces is not None and not line.startswith(announces):
            raise RuntimeError(f"{' '.join(command)[:200]} says {line!r}: {log.read_text()[-2000:]}")
        yield process, line
    finally:
        end(process)


def end(process: subprocess.Popen[str], *, grace_s: float = 20.0) -> None:
    """End a process, and whatever is left of its session."""
    process.terminate()
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_for_text(log: Path, text: str, *, limit_s: float = 120.0) -> None:
    """Wait until a process has written something. Raises RuntimeError with what it wrote instead."""
    until_s = time.monotonic() + limit_s
    while text not in log.read_text():
        if time.monotonic() > until_s:
            raise RuntimeError(f"no {text!r} within {limit_s:g} s in {log.name}: {log.read_text()[-2000:]}")
        time.sleep(0.1)


def cpu_s(roots: Iterable[int]) -> float:
    """Return the CPU seconds of processes and of all below them, those included that have ended and were waited for."""
    parents, ticks = _processes()
    children = defaultdict(list)
    for process, parent in parents.items():
        children[parent].append(process)
    found, waiting = 0, list(roots)
    while waiting:
        process = waiting.pop()
        found += ticks.get(process, 0)
        waiting += children[process]
    return found / TICKS_PER_S


def machine_busy_s() -> float:
    """Return the CPU seconds that this machine has spent on anything, over all cores."""
    user, nice, system, _idle, _wait, *more = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + sum(more[:2])) / TICKS_PER_S


def _processes() -> tuple[dict[int, int], dict[int, int]]:
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        # The name stands in brackets and may hold anything.
        fields = text.rpartition(")")[2].split()
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        ticks[process] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return parents, ticks
