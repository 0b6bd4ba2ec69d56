"""Choosing one column per layer, where a column is a layout of the layer with its figures.

The layers share one budget per window: a window's imbalance is the sum of its layers' weighted peaks. So the
whole problem is a master over columns (Dantzig and Wolfe 1960, doi:10.1287/opre.8.1.101), and the duals of its
window rows are what a unit of peak is worth: the prices at which new columns are looked for.

Two goals, used one after the other: the smallest worst window, and the most local share under a cap on it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from placement.solver.model.exchanges import Columns, exchanges_under_cap, flattest_exchanges

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SCALE = 2**32
"""CP-SAT takes integers: a weighted peak or share of 1 is this many units."""


def prices_of_smallest_peak(columns: Columns) -> tuple[float, Floats]:
    """Minimise the worst window over mixtures of columns; return it and the windows' prices, which sum to 1."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    worst = solver.NumVar(0, solver.infinity(), "worst")
    part = mixtures(solver, columns)
    rows = window_rows(solver, columns, part, limit=0.0)
    for row in rows:
        row.SetCoefficient(worst, -1.0)
    solver.Minimize(worst)
    solved(solver)
    return float(worst.solution_value()), np.array([max(0.0, -row.dual_value()) for row in rows])


def prices_under_cap(columns: Columns, *, cap: float) -> tuple[float, Floats] | None:
    """Maximise local share over mixtures under the cap; return it and the windows' prices, None if none fits."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    part = mixtures(solver, columns)
    rows = window_rows(solver, columns, part, limit=cap)
    objective = solver.Objective()
    for (column, layer), local in np.ndenumerate(columns.local_CL):
        objective.SetCoefficient(part[column][layer], float(local))
    objective.SetMaximization()
    if not solved(solver):
        return None
    return float(objective.Value()), np.array([max(0.0, row.dual_value()) for row in rows])


def mixtures(solver: pywraplp.Solver, columns: Columns) -> list[list[pywraplp.Variable]]:
    """Every layer is a convex mixture of its columns."""
    part = [[solver.NumVar(0, solver.infinity(), "") for _ in range(columns.layers)] for _ in range(columns.count)]
    for layer in range(columns.layers):
        whole = solver.Constraint(1, 1)
        for column in range(columns.count):
            whole.SetCoefficient(part[column][layer], 1)
    return part


def window_rows(
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


def solved(solver: pywraplp.Solver) -> bool:
    return bool(solver.Solve() == pywraplp.Solver.OPTIMAL)


def choose_smallest_peak(columns: Columns, *, seed: int, effort: float) -> Ints:
    """Return the column of every layer for which the worst window is smallest, int64 [L]."""
    start_L = flattest_exchanges(columns)
    if columns.windows == 1:
        return start_L
    model = cp_model.CpModel()
    taken = one_column_each(model, columns, hint_L=start_L)
    worst = model.new_int_var(0, 2**53, "worst")
    for used in windows_used(columns, taken):
        model.add(used <= worst)
    model.minimize(worst)
    chosen_L = chosen_columns(model, taken, seed=seed, effort=effort)
    return start_L if chosen_L is None else chosen_L


def choose_under_cap(
    columns: Columns, *, cap: float, seed: int, effort: float, hint_L: Ints | None = None
) -> Ints | None:
    """Return the column of every layer for most local share under the cap, int64 [L]; None if none was found."""
    model = cp_model.CpModel()
    hint_L = exchanges_under_cap(columns, cap=cap) if hint_L is None else hint_L
    taken = one_column_each(model, columns, hint_L=hint_L)
    for used in windows_used(columns, taken):
        model.add(used <= int(cap * SCALE))
    gain_CL = np.rint(columns.local_CL * SCALE).astype(np.int64)
    model.maximize(weighted(gain_CL, taken))
    return chosen_columns(model, taken, seed=seed, effort=effort)


def one_column_each(model: cp_model.CpModel, columns: Columns, *, hint_L: Ints) -> list[list[cp_model.IntVar]]:
    """Every layer takes exactly one column."""
    taken = [[model.new_bool_var("") for _ in range(columns.layers)] for _ in range(columns.count)]
    for layer in range(columns.layers):
        model.add_exactly_one(taken[column][layer] for column in range(columns.count))
        for column in range(columns.count):
            model.add_hint(taken[column][layer], bool(hint_L[layer] == column))
    return taken


def windows_used(columns: Columns, taken: list[list[cp_model.IntVar]]) -> list[cp_model.LinearExpr]:
    """A window's imbalance is the sum of the peaks of the columns taken, rounded up to whole units."""
    units_CWL = np.ceil(columns.peak_CWL * SCALE).astype(np.int64)
    return [weighted(units_CWL[:, window], taken) for window in range(columns.windows)]


def weighted(value_CL: Ints, taken: list[list[cp_model.IntVar]]) -> cp_model.LinearExpr:
    variables = [variable for column in taken for variable in column]
    return cp_model.LinearExpr.weighted_sum(variables, value_CL.ravel().tolist())


def chosen_columns(
    model: cp_model.CpModel, taken: list[list[cp_model.IntVar]], *, seed: int, effort: float
) -> Ints | None:
    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # or Ctrl-C would end the process without unwinding
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    taken_CL = np.array([[solver.boolean_value(variable) for variable in column] for column in taken])
    chosen_L: Ints = taken_CL.argmax(axis=0)
    return chosen_L
