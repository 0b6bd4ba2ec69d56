"""Small models and layers for the tests of the OR-Tools models."""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from placement.solver.model.layer import LayerNumbers


def is_feasible(model: cp_model.CpModel) -> bool:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.INFEASIBLE), solver.status_name(status)
    return status != cp_model.INFEASIBLE


def booleans(model: cp_model.CpModel, count: int) -> list[cp_model.IntVar]:
    return [model.new_bool_var("") for _ in range(count)]


def integers(model: cp_model.CpModel, count: int, *, most: int = 100) -> list[cp_model.IntVar]:
    return [model.new_int_var(0, most, "") for _ in range(count)]


def fix(model: cp_model.CpModel, variables: list[cp_model.IntVar], values: list[int]) -> None:
    for variable, value in zip(variables, values, strict=True):
        model.add(variable == value)


def even_layer(load_WE: list[list[float]], *, gpus: int, slots_per_gpu: int) -> LayerNumbers:
    """All replicas of an expert carry the same load; worth is the load in window 0."""
    load = np.array(load_WE, dtype=float)
    value_EM = np.repeat(load[0][:, None], gpus, axis=1)
    return LayerNumbers(load, value_EM, None, gpus, slots_per_gpu)


def layer_of_sets(set_load_WESG: np.ndarray, *, value_EM: np.ndarray, slots_per_gpu: int) -> LayerNumbers:
    load_WE = set_load_WESG[:, :, 0].sum(axis=2)
    return LayerNumbers(load_WE, value_EM, set_load_WESG, set_load_WESG.shape[3], slots_per_gpu)
