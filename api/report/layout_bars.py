"""The plan and the baselines as bars: the one figure that the plan is for, against its target and bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from api.report.bars import share_bar_svg
from api.report.numbers import percent, ratio
from api.report.tables import OURS, layouts_by_name
from api.report.verdict import local_name
from placement.metrics import Metrics
from placement.plan import Plan


@dataclass(frozen=True)
class LayoutBar:
    """One layout: its name, the class of its bar, its figure."""

    name: str
    style: str
    value: str
    bar: Markup


@dataclass(frozen=True)
class LayoutBars:
    """All layouts by one metric; ``target`` and ``bound`` are empty where there is none."""

    metric: str
    rows: tuple[LayoutBar, ...]
    target: str = ""
    target_at: str = ""
    bound: str = ""


def layout_bars(plan: Plan) -> LayoutBars:
    """Draw local shares against target and bound, or balancedness where no share is defined."""
    if plan.local is None:
        return LayoutBars("balancedness", _rows(plan, "balancedness", ratio, marks=[]))
    target, bound = plan.options.local_target, plan.local_bound
    marks = [(target, "target")] if bound is None else [(target, "target"), (bound, "bound")]
    return LayoutBars(
        metric=local_name(plan),
        rows=_rows(plan, local_name(plan), percent, marks=marks),
        target=percent(target, digits=0),
        target_at=f"{100 * target:.3f}%",
        bound="" if bound is None else percent(bound),
    )


def _rows(
    plan: Plan, metric: str, show: Callable[[float], str], *, marks: list[tuple[float, str]]
) -> tuple[LayoutBar, ...]:
    rows = []
    for name, metrics in layouts_by_name(plan).items():
        value = _figure(metrics, metric)
        style = "after" if name == OURS else "before"
        rows.append(LayoutBar(name, style, show(value), share_bar_svg(value, style=style, marks=marks)))
    return tuple(rows)


def _figure(metrics: Metrics, metric: str) -> float:
    value: float = getattr(metrics, metric)
    return value
