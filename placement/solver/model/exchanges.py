"""A good choice of columns by exchanges: the hint from which CP-SAT starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TEMPERATURES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
"""Widths within which windows count as nearly the worst, in units of imbalance: from smooth to sharp."""

SWEEPS = 10
"""Times that every layer is looked at per temperature, at most."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Candidate layouts of every layer.

    Attributes
    ----------
    local_CL : ndarray
        Local share of candidate c in layer l.
    peak_CWL : ndarray
        Its weighted peaks; a window's imbalance is their sum over layers.
    """

    local_CL: Floats
    peak_CWL: Floats

    @property
    def count(self) -> int:
        return int(self.local_CL.shape[0])

    @property
    def windows(self) -> int:
        return int(self.peak_CWL.shape[1])

    @property
    def layers(self) -> int:
        return int(self.local_CL.shape[1])


def flattest_exchanges(columns: Columns) -> Ints:
    """Choose columns for a small worst window: layers change column while a soft maximum over windows falls."""
    # Of equal peaks the most local.
    chosen_L: Ints = np.lexsort((-columns.local_CL, columns.peak_CWL.sum(axis=1)), axis=0)[0]
    if columns.windows == 1:
        return chosen_L
    for temperature in TEMPERATURES:
        chosen_L = _exchange(columns, chosen_L, partial(_soft_maximum, temperature))
    return chosen_L


def exchanges_under_cap(columns: Columns, *, cap: float) -> Ints:
    """Choose columns for much local share under the cap.

    First fit under the cap, losing as little local share as possible per unit of excess saved; then let layers
    change to more local columns while everything fits.
    """
    layer_L = np.arange(columns.layers)
    chosen_L = columns.local_CL.argmax(axis=0)
    for _ in range(columns.layers * columns.count):
        now_WL = columns.peak_CWL[chosen_L, :, layer_L].T
        over_W = np.maximum(now_WL.sum(axis=1) - cap, 0.0)
        if not over_W.any():
            break
        saved_CL = (np.minimum(now_WL[None] - columns.peak_CWL, over_W[:, None]) * (over_W[:, None] > 0)).sum(axis=1)
        lost_CL = columns.local_CL[chosen_L, layer_L][None] - columns.local_CL
        with np.errstate(divide="ignore", invalid="ignore"):
            rate_CL = np.where(saved_CL > 1e-12, lost_CL / saved_CL, np.inf)
        column, layer = np.unravel_index(int(rate_CL.argmin()), rate_CL.shape)
        if not np.isfinite(rate_CL[column, layer]):
            chosen_L = flattest_exchanges(columns)
            break
        chosen_L[layer] = column
    return _exchange(columns, chosen_L, _excess_then_local(columns, cap=cap))


def exchanges_at_prices(columns: Columns, *, cap: float, price_W: Floats) -> Ints:
    """Choose every layer's cheapest column at prices, then let layers change column until everything fits."""
    chosen_L = ((price_W[:, None] * columns.peak_CWL).sum(axis=1) - columns.local_CL).argmin(axis=0)
    return _exchange(columns, chosen_L, _excess_then_local(columns, cap=cap))


def _exchange(columns: Columns, chosen_L: Ints, cost: Callable[[Floats, Floats], Floats]) -> Ints:
    """Give one layer after the other its best column, all others staying, until none changes."""
    chosen_L = chosen_L.copy()
    used_W = columns.peak_CWL[chosen_L, :, np.arange(columns.layers)].sum(axis=0)
    for _ in range(SWEEPS):
        before_L = chosen_L.copy()
        for layer in range(columns.layers):
            peak_CW = columns.peak_CWL[:, :, layer]
            others_W = used_W - peak_CW[chosen_L[layer]]
            cost_C = cost(others_W + peak_CW, columns.local_CL[:, layer])
            best = int(cost_C.argmin())
            if cost_C[best] < cost_C[chosen_L[layer]] - 1e-15:
                chosen_L[layer] = best
                used_W = others_W + peak_CW[best]
        if np.array_equal(before_L, chosen_L):
            break
    return chosen_L


def _excess_then_local(columns: Columns, *, cap: float) -> Callable[[Floats, Floats], Floats]:
    def cost(used_CW: Floats, local_C: Floats) -> Floats:
        return np.asarray(np.maximum(used_CW - cap, 0.0).sum(axis=1) * columns.layers - local_C)

    return cost


def _soft_maximum(temperature: float, used_CW: Floats, _: Floats) -> Floats:
    worst_C = used_CW.max(axis=1)
    excess_CW = (used_CW - worst_C[:, None]) / temperature
    soft_C: Floats = worst_C + temperature * np.log(np.exp(excess_CW).sum(axis=1))
    return soft_C
