"""Expert heat: which experts the traffic of a plan's windows wants, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from api.report.axes import Legend, Tick, legend, ticks
from api.report.cells import cells_svg, steps
from api.report.numbers import times
from api.report.relative import over_row_mean
from placement.plan import Plan

SCALE = "heat"
HALF_STEP = 2**0.5
LIMITS = (0.25, 0.5, 0.5 * HALF_STEP, 1.0, HALF_STEP, 2.0, 2 * HALF_STEP, 4.0)
LABELS = {0.25: "\N{VULGAR FRACTION ONE QUARTER}", 0.5: "\N{VULGAR FRACTION ONE HALF}", 1.0: "1", 2.0: "2", 4.0: "4"}


@dataclass(frozen=True)
class HeatMap:
    """What the template draws.

    Attributes
    ----------
    svg : Markup
    x_ticks, y_ticks : tuple of Tick
        Experts and layers.
    legend : Legend
    has_dense : bool
        Whether some layers have no tokens.
    """

    svg: Markup
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    legend: Legend
    has_dense: bool


def heat_map(plan: Plan) -> HeatMap:
    """Draw layers x experts, coloured by the multiple of the uniform share on a logarithmic scale."""
    relative_LE = over_row_mean(plan.heat_LE)
    return HeatMap(
        svg=cells_svg(steps(relative_LE, LIMITS), scale=SCALE, label=_in_words(relative_LE)),
        x_ticks=ticks(plan.model.experts, at_most=13),
        y_ticks=ticks(plan.model.layers, at_most=14),
        legend=legend(SCALE, LIMITS, LABELS, unit="times uniform"),
        has_dense=bool(np.isnan(relative_LE).any()),
    )


def _in_words(relative_LE: npt.NDArray[np.float64]) -> str:
    layers, experts = relative_LE.shape
    moe_LE = relative_LE[~np.isnan(relative_LE).any(axis=1)]
    layer, expert = np.unravel_index(int(np.nanargmax(relative_LE)), relative_LE.shape)
    return (
        f"Heat map of {layers} layers and {experts} experts. Hottest is expert {expert} in layer {layer} with "
        f"{times(float(relative_LE[layer, expert]))} the uniform share; the median layer's hottest expert has "
        f"{times(float(np.median(moe_LE.max(axis=1))))}. The table below has every layer."
    )
