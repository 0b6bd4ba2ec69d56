"""What the comparison of two windows or two layouts says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.errors import BadRequest
from api.report import heat_map
from api.report.axes import Legend, legend
from api.report.numbers import byte_size, count, percent, ratio
from api.service.comparison import Mover, WindowDrift, compare_layouts, window_drift
from api.service.context import Service
from api.service.frames import FramesAsked, FramesCache, PhaseAsked
from api.store.models import Plan, Trace

MOST_CHOICES = 500
"""Windows in a list to choose from; the address takes any."""


@dataclass(frozen=True)
class WindowsView:
    """Two windows of a recording."""

    trace: Trace
    window_names: tuple[str, ...]
    a: int
    b: int
    layers: int
    experts: int
    drift: WindowDrift
    legend: Legend
    limits: tuple[float, ...]

    @property
    def variation(self) -> str:
        return percent(self.drift.variation)


@dataclass(frozen=True)
class FigureRow:
    """A figure of both plans."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class LayoutsView:
    """Two plans; ``figures`` are those that each was judged with, on the traffic it was planned for."""

    a: Plan
    b: Plan
    figures: tuple[FigureRow, ...]
    moves: str
    by_gpu: tuple[tuple[int, int, int], ...]
    movers: tuple[Mover, ...]
    same_traffic: bool


def windows_view(
    service: Service, cache: FramesCache, trace: Trace, a: str | None, b: str | None, phase: PhaseAsked | None
) -> WindowsView:
    """Compare windows by number; the first and the last one by default."""
    found = cache.get(service, trace, None, FramesAsked(phase=phase))
    last = len(found.window_names) - 1
    first_number, second_number = _number(a, usual=0), _number(b, usual=last)
    return WindowsView(
        trace=trace,
        window_names=found.window_names[:MOST_CHOICES],
        a=first_number,
        b=second_number,
        layers=int(found.values_WLC.shape[1]),
        experts=int(found.values_WLC.shape[2]),
        drift=window_drift(service, cache, trace, a=first_number, b=second_number, phase=phase),
        legend=legend(heat_map.SCALE, heat_map.LIMITS, heat_map.LABELS, unit="times uniform"),
        limits=heat_map.LIMITS,
    )


def layouts_view(service: Service, plans: Sequence[Plan], a: str | None, b: str | None) -> LayoutsView | None:
    """Compare two plans, by default the newest with the one before it for the same machine; None without two."""
    after = next((plan for plan in plans if plan.id == b), next(iter(plans), None))
    others = [plan for plan in plans if plan is not after]
    before = next((plan for plan in plans if plan.id == a), next(iter(others), None))
    if after is None or before is None:
        return None
    found = compare_layouts(service, before, after)
    metrics = (found.a.metrics, found.b.metrics)
    rows = [
        FigureRow("local_gpu", *(percent(each.local_gpu) for each in metrics)),
        FigureRow("local_node", *(percent(each.local_node) for each in metrics)),
        FigureRow("imbalance", *(ratio(each.imbalance) for each in metrics)),
        FigureRow("worst window", *(ratio(each.worst_window.imbalance) for each in metrics)),
        FigureRow("overflow_share", *(percent(each.overflow_share, digits=2) for each in metrics)),
        FigureRow("gpus_per_token", *(ratio(each.gpus_per_token) for each in metrics)),
    ]
    size = "" if found.moves.moved_bytes is None else f" ({byte_size(found.moves.moved_bytes)})"
    return LayoutsView(
        a=before,
        b=after,
        figures=tuple(rows),
        moves=f"{count(found.moves.moved_slots)} slots{size} move when going from the first to the second.",
        by_gpu=tuple(
            (gpu, received, sent)
            for gpu, (received, sent) in enumerate(zip(found.moves.received_G, found.moves.sent_G, strict=True))
        ),
        movers=found.movers,
        same_traffic=[each.sha256 for each in found.a.inputs] == [each.sha256 for each in found.b.inputs],
    )


def _number(text: str | None, *, usual: int) -> int:
    if text is None or text == "":
        return usual
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadRequest(f"{text[:20]!r} is no window's number; windows are counted from 0.")
    return int(text)
