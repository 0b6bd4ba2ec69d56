"""A plan's page: the report's own words, bars and tables, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from api.pages.views.gauge import gauge_of
from api.report import facts, tables
from api.report.bars import columns_svg
from api.report.layout_bars import LayoutBars, layout_bars
from api.report.numbers import byte_size, count, percent
from api.report.verdict import KeyFigure, Verdict, key_figures, verdict
from api.service.page_rows import PlanRows
from api.states import PlanState
from api.store.models import Rollout
from placement.plan import Plan as MadePlan
from profiler.formats import EXPORTERS
from profiler.model_file import model_names


@dataclass(frozen=True)
class GpuMoves:
    """Slots that one GPU takes in, and what they cost."""

    gpu: int
    node: int
    slots: str
    size: str
    seconds: str


@dataclass(frozen=True)
class Moves:
    """What going to the plan moves.

    Attributes
    ----------
    sentence : str
    by_layer, by_gpu : Markup
    rows : tuple of GpuMoves
    rate : str
        Where seconds come from, or why there are none.
    """

    sentence: str
    by_layer: Markup
    by_gpu: Markup
    rows: tuple[GpuMoves, ...]
    rate: str


@dataclass(frozen=True)
class PlanView:
    """What the page says of a plan that was made."""

    made: MadePlan
    verdict: Verdict
    gauge: Markup | None
    key_figures: tuple[KeyFigure, ...]
    bars: LayoutBars
    comparison: tables.Comparison
    capacity: tables.Comparison
    windows: tables.Windows
    holdout: tables.Windows | None
    token_notes: tuple[str, ...]
    moves: Moves
    model_facts: dict[str, str]
    option_facts: dict[str, str]
    formats: tuple[str, ...]
    models: tuple[str, ...]


@dataclass(frozen=True)
class PlanActions:
    """What somebody who may change things can do with a plan now."""

    approve: bool
    reject: bool
    push: bool
    pushing: Rollout | None


def plan_view(made: MadePlan, rollouts: Sequence[Rollout]) -> PlanView:
    """Turn a plan into what its page says."""
    holdout = made.metrics.holdout
    return PlanView(
        made=made,
        verdict=verdict(made),
        gauge=gauge_of(made),
        key_figures=key_figures(made),
        bars=layout_bars(made),
        comparison=tables.comparison(made),
        capacity=tables.capacity(made),
        windows=tables.windows(made.metrics),
        holdout=None if holdout is None else tables.windows(holdout),
        token_notes=facts.token_notes(made.metrics),
        moves=_moves(made, _bytes_per_second(rollouts)),
        model_facts=facts.model_facts(made),
        option_facts=facts.option_facts(made),
        formats=tuple(EXPORTERS),
        models=tuple(model_names()),
    )


def plan_actions(rows: PlanRows) -> PlanActions:
    """Say which buttons make sense in the state that a plan is in."""
    pushing = next((each for each in rows.rollouts if not each.state.ended), None)
    return PlanActions(
        approve=rows.plan.state in (PlanState.PROPOSED, PlanState.REJECTED),
        reject=rows.plan.state in (PlanState.PROPOSED, PlanState.APPROVED) and pushing is None,
        push=rows.plan.state is PlanState.APPROVED and pushing is None,
        pushing=pushing,
    )


def _bytes_per_second(rollouts: Sequence[Rollout]) -> float | None:
    """Return how fast an engine's last measured push moved weights."""
    for rollout in rollouts:
        result = rollout.result or {}
        moved, took_s = result.get("moved_bytes"), result.get("move_seconds")
        if result.get("simulated"):
            continue  # a replay engine moves no weights
        if moved and took_s:
            return float(moved) / float(took_s)
    return None


def _moves(made: MadePlan, bytes_per_s: float | None) -> Moves:
    moves, slots = made.moves, made.layout.slots * len(made.model.moe_layers)
    expert_bytes = (
        None if moves.moved_bytes is None or not moves.moved_slots else moves.moved_bytes // moves.moved_slots
    )
    size = "" if moves.moved_bytes is None else f", {byte_size(moves.moved_bytes)}"
    rows = []
    for gpu, received in enumerate(moves.received_by_gpu):
        of_gpu = None if expert_bytes is None else expert_bytes * received
        took_s = None if of_gpu is None or bytes_per_s is None else of_gpu / bytes_per_s
        rows.append(
            GpuMoves(
                gpu=gpu,
                node=int(made.topology.node_of_gpu_G[gpu]),
                slots=count(received),
                size=byte_size(of_gpu),
                seconds="\N{EN DASH}" if took_s is None else f"{took_s:.2g}",
            )
        )
    return Moves(
        sentence=(
            f"{count(moves.moved_slots)} of {count(slots)} slots ({percent(moves.moved_slots / slots)}){size} come "
            f"from another GPU when going from the {moves.before} layout to this plan; each GPU gives up as many as it "
            "takes in."
        ),
        by_layer=columns_svg(moves.by_layer, label=f"Moved slots by layer, at most {max(moves.by_layer)}."),
        by_gpu=columns_svg(
            moves.received_by_gpu, label=f"Slots taken in by GPU, at most {max(moves.received_by_gpu)}."
        ),
        rows=tuple(rows),
        rate=(
            "Seconds are known once a push into the engine was timed."
            if bytes_per_s is None
            else f"Seconds at {byte_size(int(bytes_per_s))} per second, the speed of the engine's last timed push."
        ),
    )
