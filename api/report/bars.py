"""Bars in SVG. Lengths are in percent of the drawing, so it can take any width without distorting anything."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from api.report.svg import drawing, element

BAR_HEIGHT_PX, BAR_MARGIN_PX = 24, 6


def share_bar_svg(share: float, *, style: str, marks: Sequence[tuple[float, str]] = ()) -> Markup:
    """Draw one share from 0 to 1 as a bar, with upright marks at other shares.

    Parameters
    ----------
    share
        Length of the bar.
    style
        Class of the bar.
    marks
        Share and class of every mark.
    """
    box = {"x": 0, "y": BAR_MARGIN_PX, "height": BAR_HEIGHT_PX - 2 * BAR_MARGIN_PX}
    parts = [
        element("rect", class_="track", width="100%", **box),
        element("rect", class_=style, width=_percent(share), **box),
    ]
    parts += [
        element("line", class_=name, x1=_percent(at), x2=_percent(at), y1=0, y2=BAR_HEIGHT_PX) for at, name in marks
    ]
    return drawing(parts, label=None, class_="bar", width="100%", height=BAR_HEIGHT_PX)


def paired_columns_svg(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], *, reference: float, label: str
) -> Markup:
    """Draw two columns per place, from zero to the highest of all, and a line at ``reference``."""
    top = float(max(first.max(), second.max(), reference))
    place_width = 100 / len(first)
    columns = []
    for place, (before, after) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        columns.append(_column("before", (place + 0.12) * place_width, 0.36 * place_width, before / top))
        columns.append(_column("after", (place + 0.52) * place_width, 0.36 * place_width, after / top))
    level = _percent(1 - reference / top)
    line = element("line", class_="reference", x1=0, x2="100%", y1=level, y2=level)
    return drawing([*columns, line], label=label, class_="columns")


def columns_svg(values: Sequence[float], *, label: str) -> Markup:
    """Draw one column per place, from zero to the highest; nothing where all are zero."""
    top = max(values) or 1.0
    place_width = 100 / len(values)
    columns = [
        _column("after", (place + 0.1) * place_width, 0.8 * place_width, value / top)
        for place, value in enumerate(values)
        if value
    ]
    return drawing(columns, label=label, class_="columns")


def _column(style: str, left: float, width: float, share: float) -> Element:
    return element(
        "rect",
        class_=style,
        x=f"{left:.3f}%",
        y=_percent(1 - share),
        width=f"{width:.3f}%",
        height=_percent(share),
    )


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.3f}%"
