"""GPU load before and after: layers x GPUs on one scale, and the totals of every GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from api.report.axes import Legend, Tick, legend, ticks
from api.report.bars import paired_columns_svg
from api.report.cells import cells_svg, steps
from api.report.numbers import times
from api.report.relative import over_row_mean, total_over_mean
from placement.plan import Plan

SCALE = "load"
LIMITS = (0.5, 0.75, 0.9, 0.97, 1.03, 1.1, 1.25, 1.5)
LABELS = {limit: f"{limit:g}" for limit in LIMITS if abs(limit - 1) > 0.05}


@dataclass(frozen=True)
class LoadMaps:
    """What the template draws.

    Attributes
    ----------
    before, after : Markup
        Layers x GPUs.
    totals : Markup
        Both totals of every GPU, as multiples of the mean.
    highest_total : float
        Top of the totals' axis.
    x_ticks, wide_x_ticks, y_ticks : tuple of Tick
        GPUs below one map, GPUs below the totals, layers.
    legend : Legend
    """

    before: Markup
    after: Markup
    totals: Markup
    highest_total: float
    x_ticks: tuple[Tick, ...]
    wide_x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    legend: Legend


def load_maps(plan: Plan) -> LoadMaps:
    """Draw both loads as distance from even, and the totals beside each other."""
    gpus, per_node = plan.topology.gpus, plan.topology.gpus_per_node
    before_G, after_G = total_over_mean(plan.load_before_LG), total_over_mean(plan.load_after_LG)
    nodes = range(per_node, gpus, per_node)
    return LoadMaps(
        before=_map(plan.load_before_LG, nodes, words=f"under the {plan.moves.before} layout"),
        after=_map(plan.load_after_LG, nodes, words="under the plan"),
        totals=paired_columns_svg(
            before_G,
            after_G,
            reference=1.0,
            label=(
                f"Total load of every GPU as a multiple of the mean. Before, the busiest has {times(before_G.max())}; "
                f"after, {times(after_G.max())}. The table below has every GPU."
            ),
        ),
        highest_total=float(max(before_G.max(), after_G.max())),
        x_ticks=ticks(gpus, at_most=8),
        wide_x_ticks=ticks(gpus, at_most=16),
        y_ticks=ticks(plan.model.layers, at_most=14),
        legend=legend(SCALE, LIMITS, LABELS, unit="times mean"),
    )


def _map(load_LG: npt.NDArray[np.int64], nodes: range, *, words: str) -> Markup:
    relative_LG = over_row_mean(load_LG)
    label = (
        f"Load of {load_LG.shape[1]} GPUs in {load_LG.shape[0]} layers {words}, as a multiple of the layer's mean: "
        f"from {times(float(np.nanmin(relative_LG)))} to {times(float(np.nanmax(relative_LG)))}."
    )
    return cells_svg(steps(relative_LG, LIMITS), scale=SCALE, label=label, separators=nodes)
