"""Reads of a service under load, while a plan is solved beside it: ``python -m tests.bench.service_reads``.

The service (``moeplan serve --workers 0``, SQLite) runs on one core, its worker, which solves a plan all the time, and
this load generator on another. Requests arrive by the clock (open loop): a plan and the heat of a recording of 61 x 384
by turns, with a key of the database, each counted from the moment it was due, so that a slow answer is not forgiven by
sending fewer. One request of each is made before, so that bytes are cached. Target: p99 <= 50 ms at 100 requests/s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from tests.bench.support.tables import print_head, print_rows

LAYERS, EXPERTS, GPUS, WINDOWS = 61, 384, 32, 4
ADMIN_KEY = "admin-key-of-the-benchmark"
TARGET_P99_MS = 50.0
BEHIND = 10
"""Niceness of the solver: it takes what the generator leaves of their core, whose own waiting must not count."""

SERVE = "from api.cli import main; main(['serve', '--port', '0', '--workers', '0'])"
WORK = "from api.cli import main; main(['worker', '--name', 'solver'])"


@dataclass(frozen=True)
class Read:
    """One request: what was read, when it was due, and how long the answer took from then."""

    what: str
    due_s: float
    took_s: float
    status: int
    size_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--idle", action="store_true", help="without the solve beside it, to compare")
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    service_core, other_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {other_core})
    with tempfile.TemporaryDirectory(prefix="moeplan-bench-") as folder:
        environment = _prepared(Path(folder))
        with _process(SERVE, environment, core=service_core, wait_for="moeplan serves on ") as line:
            url = line.split()[3].rstrip(";")
            paths = _stored(url, Path(folder))
            key = _post(url, "/v1/keys", {"name": "bench", "level": "read"})["key"]
            if asked.idle:
                reads, solving = asyncio.run(_load(url, key, paths, rate=asked.rate, seconds=asked.seconds)), "no solve"
            else:
                with _process(WORK, environment, core=other_core), _always_solving(url, paths) as solves:
                    reads = asyncio.run(_load(url, key, paths, rate=asked.rate, seconds=asked.seconds))
                solving = f"{len(solves)} plans begun beside it"
    _print(reads, asked.rate, f"service on core {service_core}, generator and solver on core {other_core}; {solving}")


def _prepared(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "MOEPLAN_DATA_DIR": str(folder / "data"),
        "MOEPLAN_ADMIN_API_KEY": ADMIN_KEY,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }


@contextmanager
def _process(code: str, environment: dict[str, str], *, core: int, wait_for: str = "") -> Iterator[str]:
    niceness = BEHIND if code == WORK else 0
    command = ["nice", "-n", str(niceness), "taskset", "--cpu-list", str(core), sys.executable, "-c", code]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, bufsize=1
    )
    try:
        line = process.stdout.readline() if wait_for and process.stdout is not None else ""
        if not line.startswith(wait_for):
            raise SystemExit(f"the service did not start: {line}")
        yield line
    finally:
        process.terminate()
        process.wait(timeout=60)


def _stored(url: str, folder: Path) -> dict[str, str]:
    """Store a recording and a plan of the size as jobs would; return the paths that are read."""
    random = np.random.default_rng(0)
    counts = random.zipf(1.6, size=(WINDOWS, LAYERS, EXPERTS)).clip(max=5000) * 100
    counts[:, :3] = 0  # dense layers
    source = folder / "counts.json"
    source.write_text(json.dumps({"logical_count": counts.tolist()}))
    with _process(WORK, _prepared(folder), core=sorted(os.sched_getaffinity(0))[-1]):
        with source.open("rb") as file:
            trace = httpx.post(f"{url}/v1/traces", files={"files": ("counts.json", file)}, headers=_admin()).json()
        _wait(url, trace["job_id"])
        asked = {"trace_ids": [trace["id"]], "gpus": GPUS, "redundant": 32, "objective": "balance", "time_limit_s": 20}
        plan = _post(url, "/v1/plans", asked)
        _wait(url, plan["job_id"])
    return {"plan": f"/v1/plans/{plan['id']}/file", "heat": f"/v1/traces/{trace['id']}/heat", "trace_id": trace["id"]}


@contextmanager
def _always_solving(url: str, paths: dict[str, str]) -> Iterator[list[str]]:
    """Keep one plan after the other being solved."""
    over, begun = threading.Event(), list[str]()

    def solve() -> None:
        asked = {"trace_ids": [paths["trace_id"]], "gpus": GPUS, "redundant": 128, "time_limit_s": 600}
        while not over.is_set():
            begun.append(_post(url, "/v1/plans", {**asked, "seed": len(begun)})["job_id"])
            while not over.wait(1.0) and _get(url, f"/v1/jobs/{begun[-1]}")["state"] in ("queued", "running"):
                pass

    thread = threading.Thread(target=solve)
    thread.start()
    _until(lambda: bool(begun) and _get(url, f"/v1/jobs/{begun[0]}")["state"] == "running")
    try:
        yield begun
    finally:
        over.set()
        thread.join()


async def _load(url: str, key: str, paths: dict[str, str], *, rate: float, seconds: float) -> list[Read]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=60.0) as client:
        for what in ("plan", "heat"):
            (await client.get(paths[what])).raise_for_status()
        begin_s = time.perf_counter() + 0.2

        async def read(number: int) -> Read:
            due_s = begin_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            what = ("plan", "heat")[number % 2]
            response = await client.get(paths[what])
            took_s = time.perf_counter() - due_s
            return Read(what, due_s - begin_s, took_s, response.status_code, len(response.content))

        return list(await asyncio.gather(*(read(number) for number in range(int(rate * seconds)))))


def _print(reads: list[Read], rate: float, where: str) -> None:
    rows = []
    for what in ("plan", "heat", "both"):
        of_it = [read for read in reads if what in (read.what, "both")]
        took_ms = np.array([1e3 * read.took_s for read in of_it])
        p50, p99 = np.percentile(took_ms, [50, 99])
        failed = sum(read.status != 200 for read in of_it)
        size = np.mean([read.size_bytes for read in of_it]) / 1024
        rows.append((what, len(of_it), f"{size:.0f}", f"{p50:.1f}", f"{p99:.1f}", f"{took_ms.max():.1f}", failed))
    protocol = [
        f"{rate:g} requests/s, open loop, latency from when a request was due; bytes cached; a key of the database",
        where,
    ]
    print_head(f"Reads of a plan and of heat, {LAYERS} x {EXPERTS}, on SQLite", protocol=protocol)
    print_rows(("read", "requests", "KiB each", "p50 ms", "p99 ms", "max ms", "failed"), rows)
    reached = float(rows[-1][4]) <= TARGET_P99_MS and not any(row[-1] for row in rows)
    print(f"p99 <= {TARGET_P99_MS:g} ms: {'reached' if reached else 'MISSED'}")


def _admin() -> dict[str, str]:
    return {"Authorization": f"Bearer {ADMIN_KEY}"}


def _get(url: str, path: str) -> dict[str, str]:
    answer: dict[str, str] = httpx.get(url + path, headers=_admin(), timeout=60.0).raise_for_status().json()
    return answer


def _post(url: str, path: str, body: object) -> dict[str, str]:
    answer: dict[str, str] = httpx.post(url + path, json=body, headers=_admin(), timeout=60.0).raise_for_status().json()
    return answer


def _wait(url: str, job_id: str) -> None:
    _until(lambda: _get(url, f"/v1/jobs/{job_id}")["state"] not in ("queued", "running"))
    job = _get(url, f"/v1/jobs/{job_id}")
    if job["state"] != "succeeded":
        raise SystemExit(f"a job ended as {job['state']}: {job['error']}")


def _until(reached: Callable[[], bool], *, limit_s: float = 300.0) -> None:
    until_s = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > until_s:
            raise SystemExit("the service did not get that far in time")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
