"""The course of a plan's search as a job tells it: few points, however long it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from placement.solver.course import Standing

SPACING = 0.02
"""The next point is told after this part of the time so far: about fifty while the time grows by a factor e."""


@dataclass(eq=False)
class CourseTeller:
    """Tells where a search stands, with the seconds since it began; what comes too soon is left out."""

    tell: Callable[[dict[str, Any]], None]
    clock: Callable[[], float] = time.monotonic
    _began_s: float = field(init=False)
    _next_s: float = field(default=0.0, init=False)
    _last: Standing | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def __call__(self, standing: Standing) -> None:
        self._last = standing
        elapsed_s = self.clock() - self._began_s
        if elapsed_s >= self._next_s:
            self._next_s = elapsed_s * (1 + SPACING)
            self.tell(point(standing, elapsed_s=elapsed_s))

    def end(self) -> None:
        """Tell where the search stands at its end, whatever was told before."""
        if self._last is not None:
            self.tell(point(self._last, elapsed_s=self.clock() - self._began_s))


def point(standing: Standing, *, elapsed_s: float) -> dict[str, Any]:
    """Return a point as plain values for JSON."""
    return {
        "elapsed_s": round(elapsed_s, 3),
        "figure": str(standing.figure),
        "best": _finite(standing.best),
        "bound": _finite(standing.bound),
        "imbalance": _finite(standing.imbalance),
        "cap": _finite(standing.cap),
        "slots_per_gpu": standing.slots_per_gpu,
        "stage": str(standing.stage),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
