"""Streaming requests in a process of their own, so that neither pushes nor measuring delay the clock they are seen by.

    python -m tests.gpu.streams URL SOURCES FIRST STREAMS NEW_TOKENS OUT.json

Every stream asks for one request after another until a line arrives on standard input, then ends with the request at
hand. Times are of ``time.monotonic``, which all processes of a Linux machine share.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.gpu.machine import PROJECT, Machine
from tests.gpu.server import Engine

PROMPT_TOKENS = 48
VOCABULARY = 256
PROCESSES = 4
COMPLETED = re.compile(rb'"completion_tokens": ?(\d+)')
"""Read without parsing the event, which repeats all tokens so far."""


@dataclass
class StreamTimes:
    """What the streams saw; filled when they have ended.

    Attributes
    ----------
    arrivals_s : list of list of float
        For every request, when each of its tokens arrived.
    requests, failed : int
    """

    arrivals_s: list[list[float]]
    requests: int = 0
    failed: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.arrivals_s))


@contextmanager
def streaming(machine: Machine, engine: Engine, *, streams: int, new_tokens: int) -> Iterator[StreamTimes]:
    """Keep so many requests running while the block runs; their tokens' times are in the result afterwards."""
    processes = [_start(machine, engine, first, streams, new_tokens) for first in range(min(streams, PROCESSES))]
    times = StreamTimes([])
    try:
        for process, _out in processes:
            if process.stdout is None or process.stdout.readline().strip() != "running":
                raise RuntimeError("the streams did not start")
        yield times
    finally:
        for process, _out in processes:
            if process.stdin is not None:
                process.stdin.write("stop\n")
                process.stdin.flush()
        for process, out in processes:
            process.communicate(timeout=180.0)
            found = json.loads(out.read_text())
            times.arrivals_s += found["arrivals_s"]
            times.requests += found["requests"]
            times.failed += found["failed"]
            engine.failures += found["failures"][:3]
        engine.requests += times.requests
        engine.failed += times.failed


def _start(
    machine: Machine, engine: Engine, first: int, streams: int, new_tokens: int
) -> tuple[subprocess.Popen[str], Path]:
    """Start the process of every :data:`PROCESSES`-th stream from ``first`` on."""
    out = machine.root / f"streams-{time.monotonic_ns()}-{first}.json"
    command = [sys.executable, "-m", "tests.gpu.streams", engine.url, str(engine.sources)]
    process = subprocess.Popen(
        [*command, str(first), str(streams), str(new_tokens), str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=machine.tool_variables(),
    )
    return process, out


def largest_gap_s(arrivals_s: Sequence[Sequence[float]], start_s: float, end_s: float) -> float:
    """Return the longest time between two tokens of one request of which any part lies in an interval.

    Returns 0.0 when no request had tokens on both sides of any part of it.
    """
    gaps = (
        later - earlier
        for arrivals in arrivals_s
        for earlier, later in pairwise(arrivals)
        if earlier < end_s and later > start_s
    )
    return max(gaps, default=0.0)


def quiet_gaps_s(
    arrivals_s: Sequence[Sequence[float]], busy: Sequence[tuple[float, float]], *, length_s: float, margin_s: float
) -> list[float]:
    """Return the largest gap of every interval of ``length_s`` that keeps ``margin_s`` away from all busy ones.

    Intervals lie within the time in which all first requests of the streams were running, end to end.
    """
    started = [arrivals[0] for arrivals in arrivals_s if arrivals]
    if not started:
        return []
    at_s, last_s = min(started) + margin_s, max(arrivals[-1] for arrivals in arrivals_s if arrivals) - margin_s
    gaps = []
    while at_s + length_s <= last_s:
        clash = [end for start, end in busy if start - margin_s < at_s + length_s and end + margin_s > at_s]
        if clash:
            at_s = max(clash) + margin_s
            continue
        gaps.append(largest_gap_s(arrivals_s, at_s, at_s + length_s))
        at_s += length_s
    return gaps


class _Streams:
    def __init__(self, url: str, sources: int, new_tokens: int) -> None:
        self._url, self._sources, self._new_tokens = url, sources, new_tokens
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        self.arrivals_s: list[list[float]] = []
        self.failures: list[str] = []
        self.requests = self.failed = 0

    def run(self, number: int) -> None:
        """Ask for one request after another."""
        draw = random.Random(number)
        while not self.stopping.is_set():
            arrivals, error = self._one(draw, number)
            with self._lock:
                self.requests += 1
                self.arrivals_s.append(arrivals)
                if len(arrivals) != self._new_tokens:
                    self.failed += 1
                    self.failures.append(error or f"{len(arrivals)} of {self._new_tokens} tokens came")

    def _one(self, draw: random.Random, number: int) -> tuple[list[float], str]:
        home = {"routed_dp_rank": number % self._sources} if self._sources > 1 else {}
        body = {
            "input_ids": [draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)],
            "sampling_params": {"temperature": 0, "max_new_tokens": self._new_tokens, "ignore_eos": True},
            "stream": True,
            **home,
        }
        arrivals: list[float] = []
        try:
            for now_s, tokens in token_events(self._url, json.dumps(body).encode()):
                arrivals += [now_s] * (tokens - len(arrivals))  # several tokens of one event arrived together
        except (OSError, RefusedRequest) as error:
            return arrivals, f"{type(error).__name__}: {error}"
        return arrivals, ""


class RefusedRequest(RuntimeError):
    """What an engine streamed instead of tokens."""


def token_events(url: str, body: bytes) -> Iterator[tuple[float, int]]:
    """Ask for a streamed generation; for every event yield when it arrived and how many tokens there were by then.

    Raises
    ------
    OSError
        The connection or the request failed.
    RefusedRequest
        The engine sent an event without tokens.
    """
    request = urllib.request.Request(f"{url}/generate", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120.0) as lines:
        for line in lines:
            now_s = time.monotonic()
            known = COMPLETED.search(line)
            if known is not None:
                yield now_s, int(known[1])
            elif line.startswith(b"data: {"):
                raise RefusedRequest(line[:300].decode(errors="replace"))


def main(url: str, sources: int, first: int, streams: int, new_tokens: int, out: Path) -> None:
    """Run some of the streams until a line arrives on standard input."""
    running = _Streams(url, sources, new_tokens)
    threads = [
        threading.Thread(target=running.run, args=(number,))
        for number in range(first, streams, min(streams, PROCESSES))
    ]
    for thread in threads:
        thread.start()
    print("running", flush=True)
    sys.stdin.readline()
    running.stopping.set()
    for thread in threads:
        thread.join()
    found = {name: getattr(running, name) for name in ("arrivals_s", "requests", "failed", "failures")}
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:6]), Path(sys.argv[6]))
