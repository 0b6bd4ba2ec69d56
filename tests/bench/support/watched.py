"""Watching a service under load: its processes' memory, and how long a read waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

EVERY_S = 2.0
READS = ("/readyz", "/v1/engines", "/v1/decisions", "/v1/jobs", "/metrics", "/schedules")
"""What dashboards and monitors ask for all the time; the last one is a page."""


@dataclass
class Watched:
    """What was seen.

    Attributes
    ----------
    peak_bytes : dict of str to int
        Largest resident memory of each process.
    read_s : list of float
        Time of each read.
    failed : list of str
        Reads that were not answered with 200.
    """

    peak_bytes: dict[str, int] = field(default_factory=dict)
    read_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def resident_bytes(process_id: int) -> int:
    """Return the resident memory of a process, 0 when it has ended."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = next((line for line in status.splitlines() if line.startswith("VmRSS:")), "VmRSS: 0 kB")
    return int(found.split()[1]) * 1024


@contextmanager
def watching(processes: Mapping[str, int], url: str) -> Iterator[Watched]:
    """Read pages and metrics, and note the memory of processes, every few seconds while the block runs."""
    seen, ending = Watched(), threading.Event()

    def look() -> None:
        with httpx.Client(base_url=url, timeout=60.0) as client:
            while not ending.wait(EVERY_S):
                for name, process_id in processes.items():
                    seen.peak_bytes[name] = max(seen.peak_bytes.get(name, 0), resident_bytes(process_id))
                for path in READS:
                    began_s = time.perf_counter()
                    try:
                        status = client.get(path).status_code
                    except httpx.HTTPError as error:
                        seen.failed.append(f"{path}: {error}")
                        continue
                    seen.read_s.append(time.perf_counter() - began_s)
                    if status != 200:
                        seen.failed.append(f"{path}: {status}")

    watcher = threading.Thread(target=look, name="watching")
    watcher.start()
    try:
        yield seen
    finally:
        ending.set()
        watcher.join()
