"""A table of numbers as coloured cells: one SVG path per colour step, so that 94 x 384 cells stay small and sharp."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from api.report.svg import drawing, element

NO_STEP = -1
"""Step of a cell that is not drawn."""


def steps(values: npt.NDArray[np.float64], limits: Sequence[float]) -> npt.NDArray[np.int64]:
    """Return each value's colour step, 0 below the first limit to ``len(limits)`` above the last; NaN has none."""
    found = np.searchsorted(np.asarray(limits, dtype=np.float64), values, side="right")
    return np.where(np.isnan(values), NO_STEP, found)


def cells_svg(step_RC: npt.NDArray[np.int64], *, scale: str, label: str, separators: Sequence[int] = ()) -> Markup:
    """Draw a table of colour steps.

    Neighbours of one step in a row are one stroke. Colours come from the page's style sheet: step i of scale ``heat``
    has the class ``heat-i``, so the same drawing serves light, dark and print.

    Parameters
    ----------
    step_RC
        Steps, int64 [rows, columns]; :data:`NO_STEP` leaves the cell empty.
    scale
        Name of the colour scale.
    label
        Text for those who cannot see it.
    separators
        Columns before which a line is drawn.
    """
    rows, columns = step_RC.shape
    paths: dict[int, list[str]] = {}
    for row in range(rows):
        for start, stop in _runs(step_RC[row]):
            step = int(step_RC[row, start])
            if step != NO_STEP:
                paths.setdefault(step, []).append(f"M{start} {row}h{stop - start}")
    parts = [element("path", class_=f"{scale}-{step}", d="".join(path)) for step, path in sorted(paths.items())]
    parts += [element("path", class_="separator", d=f"M{column} -.5v{rows}") for column in separators]
    # Strokes run along the middle of a row, so the view starts half a cell higher.
    view = f"0 -.5 {columns} {rows}"
    return drawing(parts, label=label, class_="cells", viewBox=view, preserveAspectRatio="none")


def _runs(step_C: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return start and stop of every stretch of equal steps."""
    edges = np.flatnonzero(np.diff(step_C)) + 1
    bounds = [0, *edges.tolist(), len(step_C)]
    return list(pairwise(bounds))
