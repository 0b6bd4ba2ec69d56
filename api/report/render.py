"""From a plan to its page."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from api.report import facts, tables
from api.report.axes import ticks
from api.report.bars import columns_svg
from api.report.heat_map import heat_map
from api.report.layout_bars import layout_bars
from api.report.load_map import load_maps
from api.report.numbers import count, percent
from api.report.verdict import key_figures, verdict
from placement.plan import Plan

SMALLEST_ROW_PX, LARGEST_ROW_PX, MAP_HEIGHT_PX = 4, 22, 420


def render_report(plan: Plan) -> str:
    """Return one self-contained HTML page about a plan.

    The page loads nothing and runs no script, adapts to light and dark, narrow and wide, and prints. Every chart has
    the same numbers in a table. Names from inputs are escaped.
    """
    environment = Environment(
        loader=PackageLoader("api.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    moves, slots = plan.moves, plan.layout.slots * len(plan.model.moe_layers)
    return environment.get_template("report.html.j2").render(
        plan=plan,
        subject=facts.subject(plan),
        verdict=verdict(plan),
        key_figures=key_figures(plan),
        bars=layout_bars(plan),
        heat=heat_map(plan),
        load=load_maps(plan),
        layer_ticks=ticks(plan.model.layers, at_most=8),
        map_height_px=_map_height_px(plan.model.layers),
        comparison=tables.comparison(plan),
        token_notes=facts.token_notes(plan.metrics),
        capacity=tables.capacity(plan),
        windows=tables.windows(plan.metrics),
        holdout_windows=tables.windows(plan.metrics.holdout) if plan.metrics.holdout else None,
        layers=tables.layer_rows(plan),
        gpus=tables.gpu_rows(plan),
        moved_share=percent(moves.moved_slots / slots),
        moved_by_layer=columns_svg(moves.by_layer, label=_moves_in_words(plan, "layer", moves.by_layer)),
        moved_by_gpu=columns_svg(moves.received_by_gpu, label=_moves_in_words(plan, "GPU", moves.received_by_gpu)),
        all_slots=count(slots),
        model_facts=facts.model_facts(plan),
        option_facts=facts.option_facts(plan),
        commands=facts.commands(plan),
    )


def _map_height_px(layers: int) -> int:
    return layers * max(SMALLEST_ROW_PX, min(LARGEST_ROW_PX, MAP_HEIGHT_PX // layers))


def _moves_in_words(plan: Plan, unit: str, counts: tuple[int, ...]) -> str:
    most = max(counts)
    return f"Moved slots by {unit}: at most {most}, in {unit} {counts.index(most)}. The table has every {unit}."
