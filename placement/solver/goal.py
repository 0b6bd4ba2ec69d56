"""What the search minimises in every layer: a price for soft peaks minus local share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.problem import LocalScope
from placement.solver.instance import Bools, Floats, Ints
from placement.solver.placing import Placing

SETTLED = 3e-4
"""Excess of a layer's peaks over the mean, priced, below which its balance is left alone."""

CAP_SLACK = 1e-12
"""Rounding: a plan whose imbalance exceeds its cap by this part is still within it."""


@dataclass(frozen=True, eq=False)
class Goal:
    """Minimise ``sum_w price * norm_p(loads) - local_weight * local`` layer by layer.

    The p-norm stands for the largest load: it sees second-largest GPUs too, where the maximum itself has
    plateaus. ``p = 2 ** doublings``.

    Attributes
    ----------
    price_WL : ndarray
        What one unit of peak load costs, float64 [W, L]; the layer's weight in its window times the window's
        multiplier.
    local_weight : float
        What a unit of local share is worth.
    doublings : int
    """

    price_WL: Floats
    local_weight: float
    doublings: int

    def soft_value(self, placing: Placing, rows: Ints) -> Floats:
        """Return the objective of some layers, float64 [rows]."""
        norm_WR = self._norm(placing.loads_WLG[:, rows])
        local_R = self.local_weight * placing.instance.take(rows).local_of(placing.hosts_LEG[rows])
        value_R: Floats = (self.price_WL[:, rows] * norm_WR).sum(axis=0) - local_R
        return value_R

    def hard_value(self, placing: Placing, rows: Ints) -> Floats:
        """Return the objective with the true peaks instead of the norm, float64 [rows]."""
        peak_WR = placing.loads_WLG[:, rows].max(axis=2)
        local_R = self.local_weight * placing.instance.take(rows).local_of(placing.hosts_LEG[rows])
        value_R: Floats = (self.price_WL[:, rows] * peak_WR).sum(axis=0) - local_R
        return value_R

    def slope(self, loads_WRG: Floats, rows: Ints) -> Floats:
        """Return price of a unit of ``sum_g load^p`` at the present loads, float64 [W, rows].

        The p-norm is a concave function of that sum, so a change priced with its slope never costs more than
        priced: what improves here improves the objective.
        """
        norm_WR = self._norm(loads_WRG)
        p = 2**self.doublings
        flat_WR = np.divide(1.0, raise_to_power(norm_WR, self.doublings), out=np.zeros_like(norm_WR), where=norm_WR > 0)
        slope_WR: Floats = self.price_WL[:, rows] / p * norm_WR * flat_WR
        return slope_WR

    def settled(self, placing: Placing, rows: Ints) -> Bools:
        """Tell which layers are so well balanced that no swap is worth looking for, bool [rows].

        Only where swaps change nothing but balance: where all sites are worth the same.
        """
        instance = placing.instance
        if instance.value_LEM.shape[2] > 1 or instance.scope is LocalScope.NODE or instance.staying_LEG is not None:
            return np.zeros(len(rows), dtype=np.bool_)
        excess_WR = np.maximum(placing.loads_WLG[:, rows].max(axis=2) - 1.0, 0.0)
        price_WR = self.price_WL[:, rows]
        settled_R: Bools = (price_WR * excess_WR).sum(axis=0) <= SETTLED * price_WR.sum(axis=0)
        return settled_R

    def least_gain(self, rows: Ints) -> Floats:
        """Return the improvement below which a change is rounding noise, float64 [rows]."""
        gain_R: Floats = 1e-9 * (self.price_WL[:, rows].sum(axis=0) + 1e-3 * self.local_weight)
        return gain_R

    def _norm(self, loads_WRG: Floats) -> Floats:
        # Scaled by the maximum: large powers of small loads would vanish.
        peak_WR = loads_WRG.max(axis=2)
        scaled_WRG = np.divide(
            loads_WRG, peak_WR[:, :, None], out=np.zeros_like(loads_WRG), where=peak_WR[:, :, None] > 0
        )
        sum_WR = raise_to_power(scaled_WRG, self.doublings).sum(axis=2)
        for _ in range(self.doublings):
            sum_WR = np.sqrt(sum_WR)
        norm_WR: Floats = peak_WR * sum_WR
        return norm_WR


def raise_to_power(values: Floats, doublings: int) -> Floats:
    """Return ``values ** (2 ** doublings)`` by squaring: exact to the same bits whatever the array's shape."""
    for _ in range(doublings):
        values = values * values
    return values
