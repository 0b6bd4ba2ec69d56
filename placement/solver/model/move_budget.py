"""Choosing one column per layer when only so many slots may move: the master with one more row.

Moves add up over layers as a window's peaks do, so a limit on them is a budget like theirs, and its dual is what a
moved slot is worth: the price at which columns that move less are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from placement.solver.model.columns import (
    SCALE,
    Floats,
    Ints,
    choose_under_cap,
    mixtures,
    prices_under_cap,
    solved,
    window_rows,
)
from placement.solver.model.exchanges import Columns, exchanges_at_prices

ROOMS = (0.0, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
"""Parts of the cap, and of the budget, that mixtures leave so that whole columns fit."""

STEPS = 12
FIRST_STEP = 1e-5
"""How far above the best mixture a choice of whole columns is looked for: this part first, twice as far every step."""


@dataclass(frozen=True, eq=False)
class Prices:
    """The best mixture's figure (worst window or local share), and what imbalance and a moved slot are worth in it."""

    value: float
    price_W: Floats
    price_of_a_move: float


@dataclass(frozen=True, eq=False)
class BudgetedColumns:
    """Candidate layouts of every layer, with what each moves.

    Attributes
    ----------
    columns : Columns
    moved_CL : ndarray
        int64 [C, L], slots that move in layer l when it takes column c.
    most_moved : int
        The budget, all layers together.
    """

    columns: Columns
    moved_CL: Ints
    most_moved: int

    def as_window(self, cap: float) -> Columns:
        """Add moves as one more window, which is within the cap when the moves are within the budget.

        Half a slot of room keeps the rounding of the windows' units from refusing a plan that uses the budget up.
        Of equal shares the one that moves less is worth a unit more.
        """
        row_CL = self.moved_CL * (cap / (self.most_moved + 0.5))
        return Columns(
            self.columns.local_CL - self.moved_CL / SCALE,
            np.concatenate([self.columns.peak_CWL, row_CL[:, None]], axis=1),
        )


def prices_of_smallest_peak_within(budgeted: BudgetedColumns) -> Prices | None:
    """Minimise the worst window over mixtures within the budget of moves; None if no mixture is."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    worst = solver.NumVar(0, solver.infinity(), "worst")
    part = mixtures(solver, budgeted.columns)
    rows = window_rows(solver, budgeted.columns, part, limit=0.0)
    for row in rows:
        row.SetCoefficient(worst, -1.0)
    moves = solver.Constraint(-solver.infinity(), budgeted.most_moved)
    for (column, layer), moved in np.ndenumerate(budgeted.moved_CL):
        moves.SetCoefficient(part[column][layer], float(moved))
    solver.Minimize(worst)
    if not solved(solver):
        return None
    price_W = np.array([max(0.0, -row.dual_value()) for row in rows])
    return Prices(float(worst.solution_value()), price_W, max(0.0, -moves.dual_value()))


def prices_under_cap_within(budgeted: BudgetedColumns, *, cap: float) -> Prices | None:
    """Maximise local share over mixtures under the cap and within the budget of moves; None if no mixture fits."""
    found = prices_under_cap(budgeted.as_window(cap), cap=cap)
    if found is None:
        return None
    value, dual_W = found
    return Prices(value, dual_W[:-1], float(dual_W[-1]) * cap / (budgeted.most_moved + 0.5))


def choose_under_cap_within(budgeted: BudgetedColumns, *, cap: float, seed: int, effort: float) -> Ints | None:
    """Return the column of every layer for most local share under the cap and within the budget, int64 [L].

    None if none was found.
    """
    columns = budgeted.as_window(cap)
    hint_L = _fitting_exchanges(columns, cap=cap)
    found_L = choose_under_cap(columns, cap=cap, seed=seed, effort=effort, hint_L=hint_L)
    return hint_L if found_L is None else found_L


def choose_smallest_peak_within(budgeted: BudgetedColumns, *, seed: int, effort: float) -> Ints | None:
    """Return the column of every layer for a small worst window within the budget, int64 [L]; None if none was found.

    The caps tried start at what mixtures reach, which whole columns cannot beat.
    """
    mixture = prices_of_smallest_peak_within(budgeted)
    if mixture is None:
        return None
    for step in range(STEPS):
        cap = mixture.value * (1 + FIRST_STEP * 2**step)
        if _fitting_exchanges(budgeted.as_window(cap), cap=cap) is not None:
            return choose_under_cap_within(budgeted, cap=cap, seed=seed, effort=effort)
    return None


def _fitting_exchanges(columns: Columns, *, cap: float) -> Ints | None:
    """Choose by exchanges from the prices of mixtures with ever more room below the cap, until the choice fits.

    Many windows are tight at once here, and whole columns seldom fit where a mixture just does.
    """
    layer_L = np.arange(columns.layers)
    for room in ROOMS:
        found = prices_under_cap(columns, cap=cap * (1 - room))
        if found is None:
            return None
        chosen_L = exchanges_at_prices(columns, cap=cap, price_W=found[1])
        if (columns.peak_CWL[chosen_L, :, layer_L].sum(axis=0) <= cap).all():
            return chosen_L
    return None
