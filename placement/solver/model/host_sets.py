"""Encoding by host sets: one variable for every expert and every set of GPUs. Exact for any dispatch.

There are 2^G - 1 sets, so this is for few GPUs.
"""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from placement.solver.model.layer import Bools, Floats, LayerNumbers, LayerVariables, whole, whole_worth

Variables = list[cp_model.IntVar]


def sets_of(gpus: int) -> Bools:
    """List all non-empty sets of GPUs, bool [sets, G]: set s holds GPU g when bit g of s + 1 is set."""
    bits = np.arange(1, 2**gpus)[:, None] >> np.arange(gpus) & 1
    return bits.astype(np.bool_)


def host_sets(model: cp_model.CpModel, numbers: LayerNumbers, peak_W: Variables, hint_EG: Bools) -> LayerVariables:
    """Add variables and constraints of one layer; ``hint_EG`` are hosts to start from."""
    sets_SG = sets_of(numbers.gpus)
    taken = [[model.new_bool_var("") for _ in sets_SG] for _ in range(numbers.experts)]
    take_one_set(model, taken)
    fill_every_gpu(model, taken, sets_SG, slots_per_gpu=numbers.slots_per_gpu)
    keep_loads_below_peaks(model, numbers, taken, peak_W)
    _hint(model, taken, hint_EG)
    return LayerVariables(
        value=_value(numbers, taken, sets_SG), read_hosts=lambda solver: _hosts(solver, taken, sets_SG)
    )


def take_one_set(model: cp_model.CpModel, taken: list[Variables]) -> None:
    """Every expert is on exactly one set of GPUs, which is not empty."""
    for taken_S in taken:
        model.add_exactly_one(taken_S)


def fill_every_gpu(model: cp_model.CpModel, taken: list[Variables], sets_SG: Bools, *, slots_per_gpu: int) -> None:
    """Every GPU is in the sets of exactly as many experts as it has slots."""
    for with_gpu_S in sets_SG.T:
        hosted = [taken_S[s] for taken_S in taken for s in np.flatnonzero(with_gpu_S).tolist()]
        model.add(cp_model.LinearExpr.sum(hosted) == slots_per_gpu)


def keep_loads_below_peaks(
    model: cp_model.CpModel, numbers: LayerNumbers, taken: list[Variables], peak_W: Variables
) -> None:
    """No GPU's load, what every expert brings it when hosted on the set taken, exceeds the window's peak."""
    variables = [variable for taken_S in taken for variable in taken_S]
    for load_ESG, peak in zip(set_loads(numbers), peak_W, strict=True):
        for gpu in range(numbers.gpus):
            units = [whole(load) for load in load_ESG[:, :, gpu].ravel().tolist()]
            model.add(cp_model.LinearExpr.weighted_sum(variables, units) <= peak)


def set_loads(numbers: LayerNumbers) -> Floats:
    """Return the loads of every set, float64 [W, E, sets, G]."""
    if numbers.set_load_WESG is None:
        raise ValueError("this layer was prepared for the encoding by contents: it has no loads of sets")
    return numbers.set_load_WESG


def _value(numbers: LayerNumbers, taken: list[Variables], sets_SG: Bools) -> cp_model.LinearExpr:
    """Worth: that of the sites which a set touches."""
    touched_SM = sets_SG.reshape(len(sets_SG), numbers.value_EM.shape[1], -1).max(axis=2)
    value_ES = (numbers.value_EM[:, None, :] * touched_SM[None]).sum(axis=2)
    worth: cp_model.LinearExpr = cp_model.LinearExpr.weighted_sum(
        [variable for taken_S in taken for variable in taken_S],
        [whole_worth(value) for value in value_ES.ravel().tolist()],
    )
    return worth


def _hint(model: cp_model.CpModel, taken: list[Variables], hint_EG: Bools) -> None:
    index_E = (hint_EG * 2 ** np.arange(hint_EG.shape[1])).sum(axis=1) - 1
    for taken_S, index in zip(taken, index_E.tolist(), strict=True):
        for s, variable in enumerate(taken_S):
            model.add_hint(variable, s == index)


def _hosts(solver: cp_model.CpSolver, taken: list[Variables], sets_SG: Bools) -> Bools:
    chosen_E = [[solver.boolean_value(variable) for variable in taken_S].index(True) for taken_S in taken]
    hosts_EG: Bools = np.take(sets_SG, chosen_E, axis=0)
    return hosts_EG
