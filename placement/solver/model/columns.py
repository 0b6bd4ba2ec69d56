"""Choosing one column per layer, where a column is a layout of the layer with its figures.

The layers share one budget per window: a window's imbalance is the sum of its layers' weighted peaks. So the
whole problem is a master over columns (Dantzig and Wolfe 1960, doi:10.1287/opre.8.1.101), and the duals of its
window rows are what a unit of peak is worth: the prices at which new columns are looked for.

Two goals, used one after the other: the smallest worst window, and the most local share under a cap on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SCALE = 2**32
"""CP-SAT takes integers: a weighted peak or share of 1 is this many units."""


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


def prices_of_smallest_peak(columns: Columns) -> tuple[float, Floats]:
    """Minimise the worst window over mixtures of columns; return it and the windows' prices, which sum to 1."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    worst = solver.NumVar(0, solver.infinity(), "worst")
    part = _mixtures(solver, columns)
    rows = _window_rows(solver, columns, part, limit=0.0)
    for row in rows:
        row.SetCoefficient(worst, -1.0)
    solver.Minimize(worst)
    _solve(solver)
    return float(worst.solution_value()), np.array([max(0.0, -row.dual_value()) for row in rows])


def prices_under_cap(columns: Columns, *, cap: float) -> tuple[float, Floats] | None:
    """Maximise local share over mixtures under the cap; return it and the windows' prices, None if none fits."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    part = _mixtures(solver, columns)
    rows = _window_rows(solver, columns, part, limit=cap)
    objective = solver.Objective()
    for (column, layer), local in np.ndenumerate(columns.local_CL):
        objective.SetCoefficient(part[column][layer], float(local))
    objective.SetMaximization()
    if not _solve(solver):
        return None
    return float(objective.Value()), np.array([max(0.0, row.dual_value()) for row in rows])


def _mixtures(solver: pywraplp.Solver, columns: Columns) -> list[list[pywraplp.Variable]]:
    """Every layer is a convex mixture of its columns."""
    part = [[solver.NumVar(0, solver.infinity(), "") for _ in range(columns.layers)] for _ in range(columns.count)]
    for layer in range(columns.layers):
        whole = solver.Constraint(1, 1)
        for column in range(columns.count):
            whole.SetCoefficient(part[column][layer], 1)
    return part


def _window_rows(
    solver: pywraplp.Solver, columns: Columns, part: list[list[pywraplp.Variable]], *, limit: float
) -> list[pywraplp.Constraint]:
    """A window's imbalance, the sum of its layers' weighted peaks, stays below the limit."""
    rows = []
    for window in range(columns.windows):
        row = solver.Constraint(-solver.infinity(), limit)
        for column in range(columns.count):
            for layer in range(columns.layers):
                row.SetCoefficient(part[column][layer], float(columns.peak_CWL[column, window, layer]))
        rows.append(row)
    return rows


def _solve(solver: pywraplp.Solver) -> bool:
    return bool(solver.Solve() == pywraplp.Solver.OPTIMAL)


def choose_smallest_peak(columns: Columns, *, seed: int, effort: float) -> Ints:
    """Return the column of every layer for which the worst window is smallest, int64 [L]."""
    if columns.windows == 1:
        return np.asarray(columns.peak_CWL[:, 0].argmin(axis=0))
    start_L = columns.peak_CWL.sum(axis=1).argmin(axis=0)
    model = cp_model.CpModel()
    taken = _one_column_each(model, columns, hint_L=start_L)
    worst = model.new_int_var(0, 2**53, "worst")
    for used in _windows_used(columns, taken):
        model.add(used <= worst)
    model.minimize(worst)
    chosen_L = _chosen(model, taken, seed=seed, effort=effort)
    return start_L if chosen_L is None else chosen_L


def choose_under_cap(columns: Columns, *, cap: float, seed: int, effort: float) -> Ints | None:
    """Return the column of every layer for most local share under the cap, int64 [L]; None if none was found."""
    model = cp_model.CpModel()
    taken = _one_column_each(model, columns, hint_L=_greedy_under_cap(columns, cap=cap))
    for used in _windows_used(columns, taken):
        model.add(used <= int(cap * SCALE))
    gain_CL = np.rint(columns.local_CL * SCALE).astype(np.int64)
    model.maximize(_weighted(gain_CL, taken))
    return _chosen(model, taken, seed=seed, effort=effort)


def _one_column_each(model: cp_model.CpModel, columns: Columns, *, hint_L: Ints) -> list[list[cp_model.IntVar]]:
    """Every layer takes exactly one column."""
    taken = [[model.new_bool_var("") for _ in range(columns.layers)] for _ in range(columns.count)]
    for layer in range(columns.layers):
        model.add_exactly_one(taken[column][layer] for column in range(columns.count))
        for column in range(columns.count):
            model.add_hint(taken[column][layer], bool(hint_L[layer] == column))
    return taken


def _windows_used(columns: Columns, taken: list[list[cp_model.IntVar]]) -> list[cp_model.LinearExpr]:
    """A window's imbalance is the sum of the peaks of the columns taken, rounded up to whole units."""
    units_CWL = np.ceil(columns.peak_CWL * SCALE).astype(np.int64)
    return [_weighted(units_CWL[:, window], taken) for window in range(columns.windows)]


def _weighted(value_CL: Ints, taken: list[list[cp_model.IntVar]]) -> cp_model.LinearExpr:
    variables = [variable for column in taken for variable in column]
    return cp_model.LinearExpr.weighted_sum(variables, value_CL.ravel().tolist())


def _greedy_under_cap(columns: Columns, *, cap: float) -> Ints:
    """Start from most local share; while a window is over, take the exchange that loses least per unit of excess."""
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
            rate_CL = np.where(saved_CL > 0, lost_CL / saved_CL, np.inf)
        column, layer = np.unravel_index(int(rate_CL.argmin()), rate_CL.shape)
        if not np.isfinite(rate_CL[column, layer]):
            break
        chosen_L[layer] = column
    return np.asarray(chosen_L)


def _chosen(model: cp_model.CpModel, taken: list[list[cp_model.IntVar]], *, seed: int, effort: float) -> Ints | None:
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return np.array([[solver.boolean_value(variable) for variable in column] for column in taken]).argmax(axis=0)
