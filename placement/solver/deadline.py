"""A point in time after which the search hands back what it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """``time.monotonic()`` value, or infinity for none.

    It travels to other processes as the seconds that are left: clocks of two machines have nothing in common.
    """

    at_s: float = float("inf")

    @classmethod
    def after(cls, limit_s: float | None) -> Deadline:
        return cls() if limit_s is None else cls(time.monotonic() + limit_s)

    def __reduce__(self) -> tuple[Callable[[float | None], Deadline], tuple[float | None]]:
        return Deadline.after, (None if self.at_s == float("inf") else self.left_s,)

    def part(self, share: float) -> Deadline:
        """Return an earlier deadline: after ``share`` (0..1) of what is left."""
        return self if self.at_s == float("inf") else Deadline.after(self.left_s * share)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at_s

    @property
    def left_s(self) -> float:
        return max(0.0, self.at_s - time.monotonic())
