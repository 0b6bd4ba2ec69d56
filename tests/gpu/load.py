"""So many requests in flight all the time, from processes of their own: when one has ended the next one is sent.

    python -m tests.gpu.load WORK.json FIRST OUT.npz

Every stream lives at one GPU and takes that GPU's prompts in random order. Its first request is cut to a random length,
so that streams do not run in step. Streams end, with the request at hand, when a line arrives on standard input. Times
are of ``time.monotonic``, which all processes of a Linux machine share.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.load_metrics import LoadTimes, RequestTimes
from tests.gpu.machine import PROJECT, Machine
from tests.gpu.server import Engine
from tests.gpu.streams import RefusedRequest, token_events
from tests.gpu.traffic import Traffic

STREAMS_PER_PROCESS = 16
MOST_PROCESSES = 16
CPU_EVERY_S = 0.1
END_LIMIT_S = 180.0


@dataclass(frozen=True)
class Load:
    """What is kept in flight.

    Attributes
    ----------
    traffic : Traffic
    streams : int
        Requests in flight, over all GPUs.
    tokens_per_event : int
        The engine sends a request's first token at once, then so many at a time: one HTTP process hands out all of
        them.
    """

    traffic: Traffic
    streams: int
    tokens_per_event: int

    @property
    def processes(self) -> int:
        return max(1, min(MOST_PROCESSES, self.streams // STREAMS_PER_PROCESS))


@contextmanager
def loading(machine: Machine, engine: Engine, load: Load) -> Iterator[LoadTimes]:
    """Keep the load up while the block runs; what it saw is in the result afterwards."""
    folder = machine.root / f"load-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    work = {"url": engine.url, "sources": engine.sources, "processes": load.processes, **asdict(load)}
    (folder / "work.json").write_text(json.dumps(work))
    processes = [_start(machine, folder, first) for first in range(load.processes)]
    times = LoadTimes()
    try:
        for process in processes:
            if process.stdout is None or process.stdout.readline().strip() != "running":
                raise RuntimeError("the clients did not start")
        yield times
    finally:
        for process in processes:
            with suppress(BrokenPipeError):  # one that has ended tells so by what it left
                if process.stdin is not None:
                    process.stdin.write("stop\n")
                    process.stdin.flush()
        for first, process in enumerate(processes):
            try:
                process.communicate(timeout=END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            _read(folder / f"{first}.npz", times)
        engine.requests += len(times.requests)
        engine.failed += times.failed
        engine.failures += times.failures[:3]


def _start(machine: Machine, folder: Path, first: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu.load", str(folder / "work.json"), str(first)]
    return subprocess.Popen(
        [*command, str(folder / f"{first}.npz")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=machine.tool_variables(),
    )


def _read(file: Path, times: LoadTimes) -> None:
    """Add what one process saw; one that wrote nothing is a failure."""
    if not file.exists():
        times.failures.append(f"clients ended without {file.name}")
        times.lost_processes += 1
        return
    with np.load(file) as found:
        ends = np.cumsum(found["events_R"])
        for index, end in enumerate(ends.tolist()):
            events = slice(end - int(found["events_R"][index]), end)
            times.requests.append(
                RequestTimes(
                    start_s=float(found["start_s_R"][index]),
                    prompt_tokens=int(found["prompt_tokens_R"][index]),
                    wanted=int(found["wanted_R"][index]),
                    at_s=found["at_s"][events],
                    tokens=found["tokens"][events],
                )
            )
        times.client_cpu.append((found["cpu_at_s"], found["cpu_s"]))
        times.failures += json.loads(str(found["failures"]))


class _Clients:
    """The streams of one process."""

    def __init__(self, work: dict[str, Any]) -> None:
        self._work, self._traffic = work, work["traffic"]
        self._lock = threading.Lock()
        self._seen: list[tuple[float, int, int, list[tuple[float, int]]]] = []
        self._failures: list[str] = []
        self._cpu: list[tuple[float, float]] = []
        self.stopping = threading.Event()

    def run(self, number: int) -> None:
        """Send one request after another."""
        draw = random.Random(number)
        source = number % self._work["sources"]
        prompts = self._traffic["prompts_S"][source]
        wanted = draw.randint(1, self._traffic["new_tokens"])
        while not self.stopping.is_set():
            self._one(draw.choice(prompts), source, wanted)
            wanted = self._traffic["new_tokens"]

    def watch(self) -> None:
        """Note the time on processors now and then, until the streams stop."""
        while True:
            self._cpu.append((time.monotonic(), time.process_time()))
            if self.stopping.wait(CPU_EVERY_S):
                return

    def _one(self, prompt: list[int], source: int, wanted: int) -> None:
        sampling = {
            "temperature": self._traffic["temperature"],
            "max_new_tokens": wanted,
            "ignore_eos": True,
            "stream_interval": self._work["tokens_per_event"],
        }
        body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
        if self._work["sources"] > 1:
            body["routed_dp_rank"] = source
        packed, events, failure = json.dumps(body).encode(), [], ""
        start_s = time.monotonic()
        try:
            for event in token_events(self._work["url"], packed):
                events.append(event)
        except (OSError, RefusedRequest) as error:
            failure = f"{type(error).__name__}: {error}"
        tokens = events[-1][1] if events else 0
        with self._lock:
            self._seen.append((start_s, len(prompt), wanted, events))
            if tokens != wanted:
                self._failures.append(failure or f"{tokens} of {wanted} tokens came")
        if failure:
            self.stopping.wait(0.1)  # an engine that refuses is not asked in a busy loop

    def write(self, out: Path) -> None:
        """Keep everything seen."""
        events = [event for *_, of_request in self._seen for event in of_request]
        np.savez(
            out,
            start_s_R=np.array([start_s for start_s, *_ in self._seen]),
            prompt_tokens_R=np.array([prompt for _, prompt, *_ in self._seen], dtype=np.int64),
            wanted_R=np.array([wanted for *_, wanted, _ in self._seen], dtype=np.int64),
            events_R=np.array([len(of_request) for *_, of_request in self._seen], dtype=np.int64),
            at_s=np.array([at_s for at_s, _ in events]),
            tokens=np.array([tokens for _, tokens in events], dtype=np.int64),
            cpu_at_s=np.array([at_s for at_s, _ in self._cpu]),
            cpu_s=np.array([cpu_s for _, cpu_s in self._cpu]),
            failures=json.dumps(self._failures[:5]),
        )


def main(work_file: Path, first: int, out: Path) -> None:
    """Run every ``processes``-th stream from ``first`` on until a line arrives on standard input."""
    work = json.loads(work_file.read_text())
    clients = _Clients(work)
    numbers = range(first, work["streams"], work["processes"])
    threads = [threading.Thread(target=clients.run, args=(number,)) for number in numbers]
    watch = threading.Thread(target=clients.watch)
    for thread in (watch, *threads):
        thread.start()
    print("running", flush=True)
    sys.stdin.readline()
    clients.stopping.set()
    for thread in (*threads, watch):
        thread.join()
    clients.write(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
