"""How busy an engine's processes are that take requests and hand out tokens: each does so for all GPUs in turn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

OTHERS = ("sglang::scheduler", "sglang::data_parallel_controller")
"""Processes that drive GPUs, and the one that deals requests out to them, which waits in a busy loop."""
NAME, PARENT, USER, SYSTEM = 0, 2, 12, 13
"""Places in ``/proc/PID/stat``, counted from the name on."""


def front_end_seconds(pid: int, *, processes: Path = Path("/proc")) -> dict[str, float]:
    """Return seconds on processors, by name, of an engine's first process and its direct children.

    Those of :data:`OTHERS` are left out.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for folder in processes.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = _fields((folder / "stat").read_text())
            title = (folder / "cmdline").read_text(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if int(folder.name) != pid and (int(fields[PARENT]) != pid or title.startswith(OTHERS)):
            continue
        found[f"{fields[NAME]} {folder.name}"] = (int(fields[USER]) + int(fields[SYSTEM])) / ticks
    return found


def busiest(before: Mapping[str, float], after: Mapping[str, float], *, length_s: float) -> tuple[str, float]:
    """Return the name of the busiest of the processes in between, and the share of a core that it took."""
    shares = {name: (after[name] - before[name]) / length_s for name in before if name in after}
    return max(shares.items(), key=lambda one: one[1], default=("", 0.0))


def _fields(stat: str) -> list[str]:
    """Split a line whose second field, in brackets, may hold anything."""
    begin, _, rest = stat.rpartition(")")
    return [begin.partition("(")[2], *rest.split()]
