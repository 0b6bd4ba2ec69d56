"""Figures of a plan: what a layout is worth, and what going to it from the layout before costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from placement.errors import BadPlan
from placement.metrics import CapacityMetrics, LayerMetrics, Metrics, WindowMetrics

LayoutBefore = Literal["current", "trivial"]


@dataclass(frozen=True, kw_only=True)
class PlanMetrics(Metrics):
    """A layout's figures on all windows together, and what going to it from the layout before costs.

    Attributes
    ----------
    moved_slots : int
        Slots to be filled from another GPU.
    holdout : Metrics or None
        The same layout on the windows kept back, where some were.
    """

    moved_slots: int
    holdout: Metrics | None = None

    @classmethod
    def of(cls, metrics: Metrics, *, moved_slots: int, holdout: Metrics | None = None) -> PlanMetrics:
        figures = {each.name: getattr(metrics, each.name) for each in fields(Metrics)}
        return cls(**figures, moved_slots=moved_slots, holdout=holdout)


@dataclass(frozen=True)
class Moves:
    """Weights that change GPU when going from the layout before to the plan's.

    Attributes
    ----------
    before : {"current", "trivial"}
        The layout before: the one given as current, else the one an engine starts with.
    moved_slots : int
    moved_bytes : int or None
        None where the size of an expert is unknown.
    by_layer : tuple of int
        Moved slots of each decoder layer.
    received_by_gpu : tuple of int
        Moved slots that each GPU takes in; it gives up as many.
    """

    before: LayoutBefore
    moved_slots: int
    moved_bytes: int | None
    by_layer: tuple[int, ...]
    received_by_gpu: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("by_layer", "received_by_gpu"):
            counts = tuple(int(count) for count in getattr(self, name))
            object.__setattr__(self, name, counts)
            if min(counts, default=0) < 0 or sum(counts) != self.moved_slots:
                raise BadPlan(f"moves.{name} adds up to {sum(counts)}; {self.moved_slots} slots move.")


def require_possible(metrics: PlanMetrics, *, name: str) -> None:
    """Refuse shares outside 0..1 and imbalances below 1, also of single windows and layers and of the holdout.

    Raises
    ------
    BadPlan
        Naming the layout and the figure.
    """
    for figures in (metrics, metrics.holdout):
        if figures is None:
            continue
        rows: tuple[Metrics | WindowMetrics | LayerMetrics, ...]
        rows = (figures, *figures.windows, *figures.layers, figures.worst_window, figures.worst_layer)
        for row in rows:
            for field_name in ("local_gpu", "local_node", "overflow_share", "rerouted", "dropped"):
                share = getattr(row, field_name, None)
                if share is not None and not 0 <= share <= 1 + 1e-9:
                    raise BadPlan(f"{name}: {field_name} is {share}; it is a share from 0 to 1.")
            if not 1 <= row.imbalance < math.inf:
                raise BadPlan(f"{name}: imbalance is {row.imbalance}; the smallest possible one is 1.")
        for field_name in ("gpus_per_token", "nodes_per_token", "active_experts"):
            value = getattr(figures, field_name)
            if value is not None and not 0 <= value < math.inf:
                raise BadPlan(f"{name}: {field_name} is {value}; it is a number from 0 upwards.")
        capacity: tuple[CapacityMetrics, ...] = (*figures.capacity, *figures.step_overflow)
        for at in capacity:
            if not 0 < at.capacity_factor < math.inf:
                raise BadPlan(f"{name}: a capacity factor is {at.capacity_factor}; it is a number above 0.")
            if not 0 <= min(at.rerouted, at.dropped) <= at.overflow_share <= 1 + 1e-9:
                raise BadPlan(
                    f"{name}: at the capacity factor {at.capacity_factor:g} overflow_share is {at.overflow_share}, "
                    f"rerouted {at.rerouted} and dropped {at.dropped}; these are shares, the first the largest."
                )


def capacities_of(metrics: PlanMetrics) -> list[str]:
    """Name what a layout's overflow was measured at: capacity factors, and phases of steps."""
    factors = [f"{at.capacity_factor:g}" for at in metrics.capacity]
    return factors + [f"{step.phase} {step.capacity_factor:g}" for step in metrics.step_overflow]
