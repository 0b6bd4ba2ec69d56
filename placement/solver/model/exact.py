"""Exact models: a layer at given prices, and a few layers together under what was really asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from placement.solver.model.gpu_contents import gpu_contents
from placement.solver.model.host_sets import host_sets
from placement.solver.model.layer import Bools, LayerNumbers, LayerVariables

LARGEST = 2**61

INCLUSION_EFFORT = 0
"""Presolve of OR-Tools 9.15 adds up coefficients of enforced rows in 32 bits (google/or-tools issue 5293) and may
then drop the enforcement, and with it the best layouts, where loads pass 2^31 units. Without effort for inclusions it
does not look at those rows."""


@dataclass(frozen=True)
class Limits:
    """When CP-SAT stops: deterministic seconds (equal runs end equally) and, at a deadline, wall-clock seconds."""

    effort: float
    wall_s: float = float("inf")
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Exact:
    """What CP-SAT found and proved.

    Attributes
    ----------
    hosts_LEG : ndarray or None
        Best hosts, None when none were found.
    bound : float
        In the units of the model's objective: no hosts do better than this. Equal to the objective of
        ``hosts_LEG`` when ``proven``; infinite when nothing was found.
    proven : bool
        The search was exhausted.
    """

    hosts_LEG: Bools | None
    bound: float
    proven: bool


def best_at_prices(
    numbers: LayerNumbers, hint_EG: Bools, *, value_factor: int, price_W: Sequence[int], limits: Limits
) -> Exact:
    """Maximise ``value_factor x worth - sum_w price x peak`` of one layer."""
    model = cp_model.CpModel()
    peak_W = _peaks(model, numbers)
    layer = _layer(model, numbers, peak_W, hint_EG)
    cost = cp_model.LinearExpr.weighted_sum(peak_W, list(price_W))
    model.maximize(cp_model.LinearExpr.term(layer.value, value_factor) - cost)
    return _solve(model, [layer], limits)


def most_valuable(
    numbers_L: Sequence[LayerNumbers], hints_LEG: Bools, *, cap_W: Sequence[int], limits: Limits
) -> Exact:
    """Maximise the worth of all layers; in every window their peaks add up to at most the cap."""
    model = cp_model.CpModel()
    peaks_LW = [_peaks(model, numbers) for numbers in numbers_L]
    layers = [_layer(model, *each) for each in zip(numbers_L, peaks_LW, hints_LEG, strict=True)]
    keep_sums_of_peaks_below(model, peaks_LW, list(cap_W))
    model.maximize(sum(layer.value for layer in layers))
    return _solve(model, layers, limits)


def smallest_peaks(
    numbers_L: Sequence[LayerNumbers], hints_LEG: Bools, *, factor_W: Sequence[int], limits: Limits
) -> Exact:
    """Minimise the largest over windows of ``factor x sum of the layers' peaks``, as the maximum of its negative."""
    model = cp_model.CpModel()
    peaks_LW = [_peaks(model, numbers) for numbers in numbers_L]
    layers = [_layer(model, *each) for each in zip(numbers_L, peaks_LW, hints_LEG, strict=True)]
    worst = model.new_int_var(0, LARGEST, "")
    keep_sums_of_peaks_below(model, peaks_LW, [worst] * len(factor_W), factor_W)
    model.maximize(-worst)
    return _solve(model, layers, limits)


def keep_sums_of_peaks_below(
    model: cp_model.CpModel,
    peaks_LW: Sequence[Sequence[cp_model.IntVar]],
    limit_W: Sequence[cp_model.LinearExprT],
    factor_W: Sequence[int] | None = None,
) -> None:
    """In every window the peaks of all layers, times the window's factor, add up to at most its limit."""
    for window, limit in enumerate(limit_W):
        total = cp_model.LinearExpr.sum([peak_W[window] for peak_W in peaks_LW])
        model.add((1 if factor_W is None else factor_W[window]) * total <= limit)


def _layer(
    model: cp_model.CpModel, numbers: LayerNumbers, peak_W: list[cp_model.IntVar], hint_EG: Bools
) -> LayerVariables:
    encode = gpu_contents if numbers.set_load_WESG is None else host_sets
    return encode(model, numbers, peak_W, hint_EG)


def _peaks(model: cp_model.CpModel, numbers: LayerNumbers) -> list[cp_model.IntVar]:
    """Add a layer's peaks; never below the mean load, which gives the search a floor."""
    # Loads were rounded down by less than one unit per expert and GPU.
    slack = 1 + numbers.experts
    return [
        model.new_int_var(max(0, int(total / numbers.gpus) - slack), int(total) + slack, "")
        for total in numbers.load_WE.sum(axis=1).tolist()
    ]


def _solve(model: cp_model.CpModel, layers: Sequence[LayerVariables], limits: Limits) -> Exact:
    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # or Ctrl-C would end the process without unwinding
    solver.parameters.random_seed = limits.seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = limits.effort
    solver.parameters.presolve_inclusion_work_limit = INCLUSION_EFFORT
    if limits.wall_s < float("inf"):
        solver.parameters.max_time_in_seconds = limits.wall_s
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    if not found:  # the solver then says 0 for its bound, whether it has proven anything or not
        return Exact(None, float("inf"), proven=False)
    hosts_LEG = np.stack([layer.read_hosts(solver) for layer in layers])
    return Exact(hosts_LEG, float(solver.best_objective_bound), status == cp_model.OPTIMAL)
