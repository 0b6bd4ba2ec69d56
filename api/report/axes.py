"""Tick labels and legends of the maps, placed in percent so that they keep their size when a map is stretched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """A label and where its cell's middle is, in percent of the axis."""

    label: str
    at_percent: float


@dataclass(frozen=True)
class LegendStep:
    """One colour of a scale and the label at its lower limit, empty where none is shown."""

    style: str
    limit: str


@dataclass(frozen=True)
class Legend:
    """A colour scale from low to high, its unit, and the same in words."""

    steps: tuple[LegendStep, ...]
    unit: str
    words: str


def ticks(length: int, *, at_most: int) -> tuple[Tick, ...]:
    """Label cells 0, n, 2n, ... of an axis with the smallest round n that needs no more than ``at_most`` labels."""
    every = next(step for step in _round_steps() if (length - 1) // step + 1 <= at_most)
    return tuple(Tick(str(cell), round((cell + 0.5) / length * 100, 3)) for cell in range(0, length, every))


def legend(scale: str, limits: Sequence[float], labels: dict[float, str], *, unit: str) -> Legend:
    """Return a scale's steps from low to high, labelled at the limits that ``labels`` names."""
    steps = tuple(
        LegendStep(f"{scale}-{step}", labels.get(limits[step - 1], "") if step else "")
        for step in range(len(limits) + 1)
    )
    words = f"Colour scale in {len(steps)} steps with limits at {', '.join(f'{limit:.3g}' for limit in limits)} {unit}."
    return Legend(steps, unit, words)


def _round_steps() -> Sequence[int]:
    return [factor * 10**power for power in range(7) for factor in (1, 2, 5)]
