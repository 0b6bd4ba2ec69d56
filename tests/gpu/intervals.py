"""Medians with confidence intervals that assume nothing of a distribution."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb


@dataclass(frozen=True)
class MedianInterval:
    """A median and the interval that holds the true one with at least 95 %.

    Attributes
    ----------
    median, low, high : float
    count : int
        Values it was taken from; below 6 no such interval exists, and ``low`` and ``high`` are the extremes.
    """

    median: float
    low: float
    high: float
    count: int

    def text(self, digits: int = 4) -> str:
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def median_interval(values: Sequence[float], *, confidence: float = 0.95) -> MedianInterval:
    """Return the median and the narrowest pair of order statistics that covers it with ``confidence``.

    Values lie below the true median with probability 1/2 each, so the number of those that do is binomial.

    Raises
    ------
    ValueError
        No values.
    """
    if not values:
        raise ValueError("no values to take a median of.")
    ordered, count = sorted(values), len(values)
    outside = (1 - confidence) / 2 * 2**count
    left_out, tail = 0, 1
    while tail <= outside:
        left_out += 1
        tail += comb(count, left_out)
    left_out = max(0, left_out - 1)
    return MedianInterval(statistics.median(ordered), ordered[left_out], ordered[count - 1 - left_out], count)
