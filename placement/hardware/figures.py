"""Checks of the figures in a profile."""

from __future__ import annotations

import math

from placement.errors import BadHardwareProfile


def require_figure(value: float, *, name: str, above: float) -> None:
    """Refuse what is no finite number above a limit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= above:
        raise BadHardwareProfile(f"{name} is {value!r}; it is a finite number above {above:g}.")
