"""Processes of a benchmark: started, told apart by their CPU time with everything below them, and ended. Linux only."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


class CpuMeter:
    """CPU seconds of kinds of processes and of all below them, from its making on.

    Two counts, of which the larger is taken because neither sees everything: what living processes and those that they
    waited for have used; and what every process had used when :meth:`look` last saw it, which holds those too that end
    without being waited for, as Ray's workers do.

    Parameters
    ----------
    roots
        Process ids by kind.
    """

    def __init__(self, roots: Mapping[str, Sequence[int]]) -> None:
        self._roots = {kind: tuple(found) for kind, found in roots.items()}
        self._seen: dict[str, dict[_Identity, int]] = {kind: {} for kind in roots}
        self.look()
        self._own_before = {kind: dict(seen) for kind, seen in self._seen.items()}
        self._all_before = self._all()

    def look(self) -> None:
        """Note what every process has used by now."""
        processes = _processes()
        for kind, roots in self._roots.items():
            for each in _below(processes, roots):
                self._seen[kind][each.identity] = each.own_ticks

    def spent_s(self) -> dict[str, float]:
        """Return the seconds since this was made, by kind."""
        self.look()
        now = self._all()
        spent = {}
        for kind, seen in self._seen.items():
            own = sum(ticks - self._own_before[kind].get(identity, 0) for identity, ticks in seen.items())
            spent[kind] = max(own, now[kind] - self._all_before[kind]) / TICKS_PER_S
        return spent

    def _all(self) -> dict[str, int]:
        processes = _processes()
        return {
            kind: sum(each.own_ticks + each.waited_ticks for each in _below(processes, roots))
            for kind, roots in self._roots.items()
        }


def machine_busy_s() -> float:
    """Return the CPU seconds that this machine has spent on anything, over all cores."""
    user, nice, system, _idle, _wait, *more = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + sum(more[:2])) / TICKS_PER_S


_Identity = tuple[int, int]
"""Process id and moment of start: ids come again."""


@dataclass(frozen=True)
class _Process:
    identity: _Identity
    parent: int
    own_ticks: int
    waited_ticks: int


def _below(processes: Mapping[int, _Process], roots: Iterable[int]) -> Iterator[_Process]:
    """Yield processes and all that descend from them."""
    children = defaultdict(list)
    for process in processes.values():
        children[process.parent].append(process.identity[0])
    waiting = list(roots)
    while waiting:
        number = waiting.pop()
        waiting += children[number]
        if number in processes:
            yield processes[number]


def _processes() -> dict[int, _Process]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        # The name stands in brackets and may hold anything.
        fields = text.rpartition(")")[2].split()
        number = int(stat.parent.name)
        used = [int(field) for field in fields[11:15]]
        found[number] = _Process((number, int(fields[19])), int(fields[1]), sum(used[:2]), sum(used[2:]))
    return found
