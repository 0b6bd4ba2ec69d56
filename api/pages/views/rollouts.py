"""A rollout's page: its way through the states, its chunks, what was promised and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from api.report.numbers import ABSENT, byte_size, count, percent, ratio
from api.service.context import Service
from api.service.page_rows import RolloutRows
from api.service.plan_figures import plan_figures
from api.states import RolloutState, may_follow
from api.store.models import Plan, Rollout

WAY = (
    RolloutState.WAITING, RolloutState.CHECKING, RolloutState.PUSHING, RolloutState.VERIFYING, RolloutState.MEASURING,
    RolloutState.APPLIED,
)  # fmt: skip
SHARES = ("local_gpu", "local_node")
FIGURES = ("local_gpu", "local_node", "imbalance", "gpus_per_token", "nodes_per_token")


@dataclass(frozen=True)
class Step:
    """A state on the way: when it was entered, and whether the rollout is there now."""

    state: RolloutState
    at: datetime | None
    is_now: bool


@dataclass(frozen=True)
class ChunkRow:
    """Layers that were changed between two engine steps."""

    layers: str
    slots: str
    size: str
    seconds: str


@dataclass(frozen=True)
class FigureRow:
    """A figure as promised by the plan, as the engine measured it, and of the layout before on the same traffic."""

    name: str
    predicted: str
    measured: str
    before: str


@dataclass(frozen=True)
class RolloutView:
    """What the page says of a rollout."""

    steps: tuple[Step, ...]
    chunks: tuple[ChunkRow, ...]
    figures: tuple[FigureRow, ...]
    basis: str
    """Of the traffic that the prediction is for."""

    verdict: str
    can_take_back: bool
    ended: bool
    title: str


def rollout_view(service: Service, rows: RolloutRows) -> RolloutView:
    """Turn a rollout into what its page says."""
    rollout = rows.rollout
    return RolloutView(
        steps=_steps(rows),
        chunks=tuple(_chunk(each) for each in (rollout.result or {}).get("chunks", [])),
        figures=_figures(service, rows),
        basis=str((rollout.predicted or {}).get("basis", "")),
        verdict=str((rollout.verdict or {}).get("sentence", "")),
        can_take_back=can_be_taken_back(rollout),
        ended=rollout.state.ended,
        title="Taking back" if rollout.takes_back_id else "Rollout",
    )


def _steps(rows: RolloutRows) -> tuple[Step, ...]:
    """Return the states that were entered, and those still to come while it runs."""
    entered: dict[str, datetime] = {str(RolloutState.WAITING): rows.rollout.created_at}
    for event in reversed(rows.history):
        if event.to_state is not None:
            entered[event.to_state] = event.at
    now = rows.rollout.state
    measures = rows.rollout.measure_seconds > 0
    way = tuple(each for each in WAY if each is not RolloutState.MEASURING or measures)
    if now not in WAY:  # it left the way: what was entered, and where it is now
        way = tuple(each for each in RolloutState if str(each) in entered)
    way = way if now in way else (*way, now)
    return tuple(Step(state, entered.get(str(state)), state is now) for state in way)


def _chunk(told: Mapping[str, Any]) -> ChunkRow:
    layers = told["layers"]
    shown = str(layers[0]) if len(layers) == 1 else f"{layers[0]} to {layers[-1]} ({len(layers)})"
    moved, took_s = told.get("moved_bytes"), told.get("seconds")
    return ChunkRow(
        layers=shown,
        slots=count(told["changed_slots"]),
        size=byte_size(moved) if moved else ABSENT,  # 0 where the engine does not know an expert's size
        seconds="\N{EN DASH}" if took_s is None else f"{took_s:.3f}",
    )


def _figures(service: Service, rows: RolloutRows) -> tuple[FigureRow, ...]:
    predicted = rows.rollout.predicted or _promised(service, rows.plan)
    measured, before = rows.rollout.measured or {}, rows.rollout.measured_before or {}
    return tuple(
        FigureRow(name, *(_shown(name, each.get(name)) for each in (predicted, measured, before)))
        for name in FIGURES
        if predicted.get(name) is not None or isinstance(measured.get(name), float)
    )


def _promised(service: Service, plan: Plan | None) -> Mapping[str, Any]:
    """Return a plan's own figures, for a rollout that has not been checked yet."""
    return {} if plan is None or plan.sha256 is None else plan_figures(service, plan).planned


def can_be_taken_back(rollout: Rollout) -> bool:
    """Whether the layout before a rollout can be put back."""
    return rollout.state.ended and rollout.from_hash is not None and may_follow(rollout.state, RolloutState.ROLLED_BACK)


def _shown(name: str, value: Any) -> str:
    number = float(value) if isinstance(value, int | float) else None
    return percent(number) if name in SHARES else ratio(number)
