"""A recording's heat: what the page says of it beside what its script draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from api.pages.views.balance import BalanceRow, balance_rows
from api.report import heat_map, load_map
from api.report.axes import Legend, legend
from api.report.numbers import count, times
from api.report.relative import over_row_mean
from api.service.context import Service
from api.service.frames import Frames, FramesAsked, FramesCache, PhaseAsked
from api.service.page_rows import TraceRows
from api.service.plans import made
from api.store.models import Plan
from placement.errors import CodedError


@dataclass(frozen=True)
class LayerRow:
    """One layer of all windows together; ``before`` and ``planned`` are the busiest GPU over the mean."""

    layer: int
    tokens: str
    hottest: str
    coldest: str
    before: str
    planned: str


@dataclass(frozen=True)
class PlanOfHeat:
    """The plan whose layouts the load is shown under."""

    plan: Plan
    gpus: int
    gpus_per_node: int
    slots_per_gpu: int
    before_name: str
    before: tuple[BalanceRow, ...]
    planned: tuple[BalanceRow, ...]


@dataclass(frozen=True)
class HeatView:
    """What stands around the maps.

    Attributes
    ----------
    silent : tuple of int
        Layers without traffic: dense ones, or such that nothing was recorded of.
    has_tokens : bool
        Whether single tokens were recorded, so that co-activation is known.
    """

    windows: int
    window_names: tuple[str, ...]
    layers: int
    experts: int
    silent: tuple[int, ...]
    sources: str
    phases: tuple[str, ...]
    has_tokens: bool
    heat_legend: Legend
    load_legend: Legend
    heat_limits: tuple[float, ...]
    load_limits: tuple[float, ...]
    layer_rows: tuple[LayerRow, ...]
    of_plan: PlanOfHeat | None


def heat_view(
    service: Service, cache: FramesCache, rows: TraceRows, plan: Plan | None, phase: PhaseAsked | None
) -> HeatView:
    """Read a recording, and its load under a plan's layouts, for the page.

    Raises
    ------
    WrongState, BadRequest, BadOption
    """
    heat = cache.get(service, rows.trace, None, FramesAsked(phase=phase))
    layers, experts = heat.values_WLC.shape[1:]
    loads = {} if plan is None else _loads(service, cache, rows, plan, phase)
    facts = rows.trace.facts or {}
    return HeatView(
        windows=len(heat.window_names),
        window_names=heat.window_names,
        layers=layers,
        experts=experts,
        silent=tuple(sorted(set(range(layers)) - set(heat.moe_layers))),
        sources=heat.sources if not loads else loads["plan"].sources,
        phases=cache.phases(service, rows.trace),
        has_tokens=facts.get("kind") == "tokens",
        heat_legend=legend(heat_map.SCALE, heat_map.LIMITS, heat_map.LABELS, unit="times uniform"),
        load_legend=legend(load_map.SCALE, load_map.LIMITS, load_map.LABELS, unit="times the layer's mean"),
        heat_limits=heat_map.LIMITS,
        load_limits=load_map.LIMITS,
        layer_rows=_layer_rows(heat, loads),
        of_plan=None if plan is None else _plan_of_heat(service, plan, loads),
    )


def usable_plan(rows: TraceRows, asked: str | None) -> Plan | None:
    """Return the plan asked for, else the newest one made from the recording; ``none`` asks for none."""
    if asked == "none":
        return None
    chosen = next((plan for plan in rows.plans if plan.id == asked), None)
    return chosen or next(iter(rows.plans), None)


def _loads(
    service: Service, cache: FramesCache, rows: TraceRows, plan: Plan, phase: PhaseAsked | None
) -> dict[str, Frames]:
    asked = {name: FramesAsked(axis="gpus", phase=phase, layout=name) for name in ("before", "plan")}
    return {name: cache.get(service, rows.trace, plan, each) for name, each in asked.items()}


def _plan_of_heat(service: Service, plan: Plan, loads: Mapping[str, Frames]) -> PlanOfHeat:
    document = made(service, plan)
    by_layer = {name: frames.values_WLC.reshape(-1, frames.values_WLC.shape[2]) for name, frames in loads.items()}
    return PlanOfHeat(
        plan=plan,
        gpus=document.topology.gpus,
        gpus_per_node=document.topology.gpus_per_node,
        slots_per_gpu=document.slots_per_gpu,
        before_name=before_in_words(plan),
        before=balance_rows(by_layer["before"]),
        planned=balance_rows(by_layer["plan"]),
    )


def before_in_words(plan: Plan) -> str:
    """Name the layout that a plan would replace."""
    return (
        "layout that ran when it was planned" if plan.current_sha256 is not None else "layout that engines start with"
    )


def _layer_rows(heat: Frames, loads: Mapping[str, Frames]) -> tuple[LayerRow, ...]:
    tokens_LE = heat.values_WLC.sum(axis=0)
    relative_LE = over_row_mean(tokens_LE)
    busiest = {name: _busiest_L(frames) for name, frames in loads.items()}
    rows = []
    for layer in heat.moe_layers:
        hottest, coldest = int(tokens_LE[layer].argmax()), int(tokens_LE[layer].argmin())
        rows.append(
            LayerRow(
                layer=layer,
                tokens=count(int(tokens_LE[layer].sum())),
                hottest=f"{hottest} ({times(float(relative_LE[layer, hottest]))})",
                coldest=f"{coldest} ({times(float(relative_LE[layer, coldest]))})",
                before=f"{busiest['before'][layer]:.2f}" if busiest else "",
                planned=f"{busiest['plan'][layer]:.2f}" if busiest else "",
            )
        )
    return tuple(rows)


def _busiest_L(frames: Frames) -> npt.NDArray[np.float64]:
    """Return the largest GPU load over the mean, each added up over windows, by layer; NaN without traffic."""
    most_L, mean_L = frames.values_WLC.max(axis=2).sum(axis=0), frames.values_WLC.mean(axis=2).sum(axis=0)
    found_L = np.full(most_L.shape, np.nan)
    np.divide(most_L, mean_L, out=found_L, where=mean_L > 0)
    return found_L


def heat_problem(error: CodedError) -> dict[str, Any]:
    """Return what a page says instead of a heat that cannot be shown."""
    return {"code": error.code, "detail": error.detail, "remedies": error.remedies}
