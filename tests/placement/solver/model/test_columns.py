"""Choices among whole layouts of layers: trivially kept, refused when broken, allowed when kept."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from placement.solver.model.columns import (
    Columns,
    choose_smallest_peak,
    choose_under_cap,
    mixtures,
    one_column_each,
    prices_of_smallest_peak,
    prices_under_cap,
    window_rows,
)
from tests.placement.solver.model.small_models import fix, is_feasible

COLUMNS = Columns(
    local_CL=np.array([[0.3, 0.4], [0.2, 0.1]]),
    peak_CWL=np.array([[[0.6, 0.8], [0.5, 0.5]], [[0.5, 0.5], [0.6, 0.5]]]),
)
"""Two columns of two layers in two windows: the first is more local and taller in window 0."""


class TestOneColumnEach:
    def feasible(self, values_CL: list[list[int]] | None) -> bool:
        model = cp_model.CpModel()
        taken = one_column_each(model, COLUMNS, hint_L=np.zeros(2, dtype=np.int64))
        for variables, values in zip(taken, values_CL or [], strict=False):
            fix(model, variables, values)
        return is_feasible(model)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None)

    @pytest.mark.parametrize("values", [[[1, 1], [1, 0]], [[0, 1], [0, 0]]])
    def test_two_columns_or_none_for_a_layer_are_refused(self, values: list[list[int]]) -> None:
        assert not self.feasible(values)

    def test_a_mix_is_allowed(self) -> None:
        assert self.feasible([[1, 0], [0, 1]])


class TestWindowRows:
    """The linear master: a mixture of columns keeps every window below the limit."""

    def feasible(self, parts_CL: list[list[float]] | None, *, limit: float) -> bool:
        solver = pywraplp.Solver.CreateSolver("GLOP")
        part = mixtures(solver, COLUMNS)
        window_rows(solver, COLUMNS, part, limit=limit)
        for variables, values in zip(part, parts_CL or [], strict=False):
            for variable, value in zip(variables, values, strict=True):
                solver.Add(variable == value)
        return bool(solver.Solve() == pywraplp.Solver.OPTIMAL)

    def test_trivially_feasible(self) -> None:
        assert self.feasible(None, limit=2.0)

    def test_a_window_above_the_limit_is_refused(self) -> None:
        assert not self.feasible([[1, 1], [0, 0]], limit=1.39)
        assert not self.feasible(None, limit=0.99)

    def test_parts_that_are_no_mixture_are_refused(self) -> None:
        assert not self.feasible([[0.5, 1], [0.4, 0]], limit=2.0)

    def test_a_window_at_the_limit_is_allowed(self) -> None:
        assert self.feasible([[1, 1], [0, 0]], limit=1.4001)
        assert self.feasible([[0.5, 0.5], [0.5, 0.5]], limit=1.2001)


class TestChoices:
    """The choice of columns against all choices."""

    def columns(self, seed: int) -> Columns:
        generator = np.random.default_rng(seed)
        shape = (int(generator.integers(1, 5)), int(generator.integers(1, 4)), int(generator.integers(1, 5)))
        return Columns(generator.random((shape[0], shape[2])), generator.random(shape))

    def every_choice(self, columns: Columns) -> list[tuple[float, float]]:
        """Return worst window and local share of all choices."""
        layer_L = np.arange(columns.layers)
        choices = [np.array(choice) for choice in product(range(columns.count), repeat=columns.layers)]
        return [
            (
                float(columns.peak_CWL[chosen_L, :, layer_L].sum(axis=0).max()),
                float(columns.local_CL[chosen_L, layer_L].sum()),
            )
            for chosen_L in choices
        ]

    def figures(self, columns: Columns, chosen_L: np.ndarray) -> tuple[float, float]:
        layer_L = np.arange(columns.layers)
        return (
            float(columns.peak_CWL[chosen_L, :, layer_L].sum(axis=0).max()),
            float(columns.local_CL[chosen_L, layer_L].sum()),
        )

    @pytest.mark.parametrize("seed", range(12))
    def test_smallest_peak(self, seed: int) -> None:
        columns = self.columns(seed)
        worst, _ = self.figures(columns, choose_smallest_peak(columns, seed=0, effort=1.0))
        best = min(peak for peak, _ in self.every_choice(columns))
        assert worst == pytest.approx(best, abs=1e-8)
        relaxed, price_W = prices_of_smallest_peak(columns)
        assert relaxed <= best + 1e-9
        assert price_W.sum() == pytest.approx(1.0)

    @pytest.mark.parametrize("seed", range(12))
    def test_most_local_under_a_cap(self, seed: int) -> None:
        columns = self.columns(seed)
        choices = self.every_choice(columns)
        cap = float(np.median([peak for peak, _ in choices])) + 1e-6
        chosen_L = choose_under_cap(columns, cap=cap, seed=0, effort=1.0)
        assert chosen_L is not None
        peak, local = self.figures(columns, chosen_L)
        best = max(local for peak, local in choices if peak <= cap)
        assert peak <= cap
        assert local == pytest.approx(best, abs=1e-8)
        relaxed = prices_under_cap(columns, cap=cap)
        assert relaxed is not None
        assert relaxed[0] >= best - 1e-9
        assert (relaxed[1] >= 0).all()

    def test_a_cap_that_no_choice_keeps(self) -> None:
        columns = self.columns(3)
        cap = min(peak for peak, _ in self.every_choice(columns)) / 2
        assert choose_under_cap(columns, cap=cap, seed=0, effort=1.0) is None
        assert prices_under_cap(columns, cap=cap / 2) is None
