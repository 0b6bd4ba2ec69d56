"""The overview: how every engine stands, and what waits for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from api.pages.words import ago
from api.report.bars import share_bar_svg
from api.service.context import Service
from api.service.page_rows import EngineRows, waits_for_approval
from api.service.plan_figures import PlanFigures, plan_figures
from api.states import EngineState, PlanState, RolloutState

HALF_WAY = (RolloutState.FAILED, RolloutState.UNCONFIRMED, RolloutState.SUPERSEDED)


@dataclass(frozen=True)
class Need:
    """Something that waits for a person: a sentence, and where to do it."""

    sentence: str
    address: str
    link: str


@dataclass(frozen=True)
class Standing:
    """How a layout does on the newest planned traffic."""

    name: str
    style: str
    local: float | None
    imbalance: float
    bar: Markup | None


@dataclass(frozen=True)
class EngineCard:
    """One engine.

    Attributes
    ----------
    standings : tuple of Standing
        The running layout and the newest plan; empty before the first plan.
    scope, target, bound
        What the shares are of, the share asked for, and the share proven to be the most.
    local_reason : str
        Why no share is defined, else empty.
    simulated : bool
        Whether it is a replay engine, so that nothing here was measured on a GPU.
    """

    rows: EngineRows
    machine: str
    simulated: bool
    standings: tuple[Standing, ...]
    scope: str
    target: float
    bound: float | None
    local_reason: str
    plan_at: datetime | None
    trace_at: datetime | None
    needs: tuple[Need, ...]


def engine_card(service: Service, rows: EngineRows) -> EngineCard:
    """Turn an engine's rows into what the overview says of it."""
    figures = None if rows.plan is None else plan_figures(service, rows.plan)
    facts = rows.engine.facts or {}
    return EngineCard(
        rows=rows,
        machine=machine_in_words(facts),
        simulated=bool(facts.get("simulated")),
        standings=()
        if figures is None
        else (*_standings(figures, applied=is_running(rows)), *_measured(figures, rows)),
        scope="local_gpu" if figures is None else figures.scope,
        target=0.6 if figures is None else figures.target,
        bound=None if figures is None else figures.bound,
        local_reason=str((figures and figures.planned.get("local_reason")) or ""),
        plan_at=None if rows.plan is None else rows.plan.created_at,
        trace_at=None if rows.trace is None else rows.trace.created_at,
        needs=tuple(_needs(rows)),
    )


def is_running(rows: EngineRows) -> bool:
    """Whether the engine runs its newest plan, by its last reading and the rollouts since."""
    return rows.plan is not None and rows.plan.layout_hash is not None and rows.running_hash == rows.plan.layout_hash


def machine_in_words(facts: Mapping[str, Any]) -> str:
    """Say what an engine is made of; empty while it has not been read."""
    if not facts:
        return ""
    gpus, nodes, slots = facts["ep_size"], facts["nodes"], facts["slots_per_gpu"]
    where = f"{gpus} GPUs" + (f" in {nodes} nodes" if nodes > 1 else "")
    backend = "no all-to-all" if facts["a2a_backend"] == "none" else facts["a2a_backend"]
    return f"{where}, {slots} slots each, {backend}, dispatch {facts['dispatch'] or 'not set'}"


def _standings(figures: PlanFigures, *, applied: bool) -> tuple[Standing, ...]:
    planned = _standing("running: the newest plan" if applied else "newest plan", "after", figures, figures.planned)
    before_name = "running layout" if figures.before_name == "current" else f"{figures.before_name} layout"
    before = _standing("before the plan" if applied else before_name, "before", figures, figures.before)
    return (before, planned)


def _measured(figures: PlanFigures, rows: EngineRows) -> tuple[Standing, ...]:
    """Return what the engine's own traffic showed after the last push, where it still runs that layout."""
    newest = next(iter(rows.rollouts), None)
    if newest is None or not newest.measured or newest.to_hash != rows.running_hash:
        return ()
    metrics = newest.measured
    if metrics.get("imbalance") is None or figures.scope not in metrics:
        return ()
    return (_standing(f"running: measured {ago(newest.ended_at)}", "measured", figures, metrics),)


def _standing(name: str, style: str, figures: PlanFigures, metrics: Mapping[str, Any]) -> Standing:
    share = metrics[figures.scope]
    marks = [(figures.target, "target")] + ([] if figures.bound is None else [(figures.bound, "bound")])
    bar = None if share is None else share_bar_svg(share, style=style, marks=marks)
    return Standing(name, style, share, metrics["imbalance"], bar)


def _needs(rows: EngineRows) -> list[Need]:
    """List what an engine waits for, most pressing first."""
    engine, address = rows.engine, f"/engines/{rows.engine.id}"
    found = []
    if engine.state in (EngineState.UNREACHABLE, EngineState.LIMITED):
        why = (engine.error or {}).get("detail") or engine.state.sentence
        sentence = why if why.startswith("http") else f"{why[0].upper()}{why[1:]}"
        found.append(Need(sentence, address, "Look at the engine"))
    newest = next(iter(rows.rollouts), None)
    if newest is not None and newest.state in HALF_WAY:
        found.append(Need(newest.state.sentence, f"/rollouts/{newest.id}", "See what runs, take it back"))
    proposed = waits_for_approval(rows)
    if proposed is not None:
        found.append(Need("A plan waits for approval.", f"/plans/{proposed.id}", "Read and decide"))
    plan = rows.plan
    pushing = any(rollout.plan_id == plan.id for rollout in rows.rollouts) if plan is not None else False
    if plan is not None and plan.state is PlanState.APPROVED and not pushing:
        found.append(Need("An approved plan has not been pushed.", f"/plans/{plan.id}", "Push it"))
    if not rows.traces and engine.facts is not None:
        found.append(Need("Nothing has been recorded from it yet.", f"{address}#record", "Record its traffic"))
    elif rows.trace is not None and plan is None:
        found.append(Need("There is a recording and no plan.", f"/plans/new?trace={rows.trace.id}", "Make a plan"))
    return found
