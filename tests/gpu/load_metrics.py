"""What requests in flight saw within a window of time: rates, times to first token and between tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SHORT = 1.0
"""Windows that a request may take to count as short."""
SATURATED = 0.8
"""Share of one core above which a process that answers in turn adds to the times that it sees."""


@dataclass(frozen=True)
class RequestTimes:
    """One request as its client saw it.

    Attributes
    ----------
    start_s : float
    prompt_tokens, wanted : int
        Its length, and the tokens asked for.
    at_s, tokens : ndarray
        [E] when each event arrived and how many tokens there were by then.
    """

    start_s: float
    prompt_tokens: int
    wanted: int
    at_s: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]

    @property
    def failed(self) -> bool:
        return not len(self.tokens) or int(self.tokens[-1]) != self.wanted

    @property
    def first_token_s(self) -> float:
        return float(self.at_s[0])

    @property
    def last_token_s(self) -> float:
        return float(self.at_s[-1])

    def part_within(self, start_s: float, end_s: float) -> float:
        """Return the part of its time, from sending to the last token, that lies in an interval."""
        inside_s = min(self.last_token_s, end_s) - max(self.start_s, start_s)
        return max(0.0, inside_s) / (self.last_token_s - self.start_s)


@dataclass
class LoadTimes:
    """What all clients saw; filled when they have ended.

    Attributes
    ----------
    requests : list of RequestTimes
    client_cpu : list of (ndarray, ndarray)
        For every process of clients: moments, and its seconds on processors by then.
    lost_processes : int
        Processes that ended without an account.
    """

    requests: list[RequestTimes] = field(default_factory=list)
    client_cpu: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lost_processes: int = 0

    @property
    def failed(self) -> int:
        return self.lost_processes + sum(request.failed for request in self.requests)


@dataclass(frozen=True)
class Window:
    """A stretch of time under one layout.

    Attributes
    ----------
    since_s : float
        When the layout began to run; only requests sent later tell a time to first token.
    start_s, end_s : float
    """

    since_s: float
    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Spread:
    """Median and 99th percentile (nearest rank) of ``count`` values."""

    median: float
    p99: float
    count: int


def spread(values: Sequence[float]) -> Spread | None:
    """Return median and 99th percentile, None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], len(ordered))


@dataclass(frozen=True)
class Served:
    """What a window saw, over all GPUs.

    Attributes
    ----------
    output_tokens_per_s, input_tokens_per_s : float
        Where requests are short: those of each request by the part of its time in the window. Engines compute waiting
        prompts before they go on with others' tokens, so that short requests come in waves, of which a window holds no
        whole number. Where they are long: tokens that arrived, and prompts whose first token did.
    rates_by : {"requests", "arrivals"}
        Which of them.
    first_token_s : Spread or None
        Of requests that were sent under the layout and whose first token arrived in the window.
    token_s : Spread or None
        Time per output token: for each request, the time between its first and last event in the window over the
        tokens in between.
    """

    output_tokens_per_s: float
    input_tokens_per_s: float
    rates_by: str
    first_token_s: Spread | None
    token_s: Spread | None


def served(requests: Sequence[RequestTimes], window: Window) -> Served:
    """Sum up a window."""
    output = prompts = 0
    first_token_s, token_s = [], []
    requests = [request for request in requests if not request.failed]
    for request in requests:
        low, high = np.searchsorted(request.at_s, (window.start_s, window.end_s)).tolist()
        if low == high:
            continue
        before = int(request.tokens[low - 1]) if low else 0
        output += int(request.tokens[high - 1]) - before
        if low == 0:
            prompts += request.prompt_tokens
            if request.start_s >= window.since_s:
                first_token_s.append(request.first_token_s - request.start_s)
        between = int(request.tokens[high - 1] - request.tokens[low])
        if between:
            token_s.append(float(request.at_s[high - 1] - request.at_s[low]) / between)
    rates = output / window.length_s, prompts / window.length_s, "arrivals"
    parts = [(request, request.part_within(window.start_s, window.end_s)) for request in requests]
    seen = [(request, part) for request, part in parts if part]
    if seen and statistics.median(_length_s(request) for request, _ in seen) <= SHORT * window.length_s:
        output_tokens = sum(part * request.wanted for request, part in seen)
        input_tokens = sum(part * request.prompt_tokens for request, part in seen)
        rates = output_tokens / window.length_s, input_tokens / window.length_s, "requests"
    return Served(*rates, spread(first_token_s), spread(token_s))


def _length_s(request: RequestTimes) -> float:
    return request.last_token_s - request.start_s


def busiest_client(load: LoadTimes, window: Window) -> float:
    """Return the share of a core that the busiest process of clients took within a window."""
    shares = [
        float(np.interp(window.end_s, at_s, cpu_s) - np.interp(window.start_s, at_s, cpu_s)) / window.length_s
        for at_s, cpu_s in load.client_cpu
        if len(at_s)
    ]
    return max(shares, default=0.0)
