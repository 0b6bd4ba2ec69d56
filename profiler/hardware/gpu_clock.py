"""Times of GPU work."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

WARM_UP = 3
REPEATS = 15


def median_seconds(torch: Any, run: Callable[[], None]) -> float:
    """Return the median time of some work on the current GPU, between events on its own stream."""
    for _ in range(WARM_UP):
        run()
    spans = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        spans.append((begin, end))
    torch.cuda.synchronize()
    return float(median(begin.elapsed_time(end) for begin, end in spans)) / 1e3
