"""Encoding by what a GPU holds: for experts whose replicas all carry the same load, and GPUs that are alike.

Variables: ``gpus_with[p]``, how many GPUs hold the experts of content p; ``count[e][n]``, expert e has n + 1
replicas; ``share[w][e]``, the load of one replica. GPUs have no names here, so there are no symmetric copies of
a layout, and 56 contents (8 experts, 3 or 5 slots) take the place of 8^3 hosting variables: layers of 8 experts
are solved in a tenth of a second. The number of contents is C(experts, slots per GPU): for few experts only.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from ortools.sat.python import cp_model

from placement.solver.model.layer import Bools, LayerNumbers, LayerVariables, whole, whole_worth

Variables = list[cp_model.IntVar]
Contents = list[tuple[int, ...]]


def contents_of(*, experts: int, slots_per_gpu: int) -> Contents:
    """List everything that a GPU can hold: all sets of ``slots_per_gpu`` experts."""
    return list(combinations(range(experts), slots_per_gpu))


def number_of_contents(*, experts: int, slots_per_gpu: int) -> int:
    return comb(experts, slots_per_gpu)


def gpu_contents(model: cp_model.CpModel, numbers: LayerNumbers, peak_W: Variables, hint_EG: Bools) -> LayerVariables:
    """Add variables and constraints of one layer; ``hint_EG`` are hosts to start from."""
    experts, gpus = numbers.experts, numbers.gpus
    contents = contents_of(experts=experts, slots_per_gpu=numbers.slots_per_gpu)
    gpus_with = [model.new_int_var(0, gpus, "") for _ in contents]
    used = [model.new_bool_var("") for _ in contents]
    count = [[model.new_bool_var("") for _ in range(gpus)] for _ in range(experts)]
    share = [[_share_variable(model, load, gpus) for load in load_E] for load_E in numbers.load_WE.tolist()]

    give_every_gpu_a_content(model, gpus_with, gpus=gpus)
    count_replicas(model, contents, gpus_with, count)
    split_load_evenly(model, numbers, count, share)
    mark_used_contents(model, gpus_with, used, gpus=gpus)
    keep_contents_below_peaks(model, contents, used, share, peak_W)
    _hint(model, contents, gpus_with, used, count, hint_EG)
    return LayerVariables(
        value=_value(numbers, count), read_hosts=lambda solver: _hosts(solver, contents, gpus_with, experts=experts)
    )


def give_every_gpu_a_content(model: cp_model.CpModel, gpus_with: Variables, *, gpus: int) -> None:
    """Every GPU holds exactly one content, so it is full and holds no expert twice."""
    model.add(cp_model.LinearExpr.sum(gpus_with) == gpus)


def count_replicas(model: cp_model.CpModel, contents: Contents, gpus_with: Variables, count: list[Variables]) -> None:
    """An expert has as many replicas as there are GPUs whose content includes it, and at least one."""
    for expert, count_n in enumerate(count):
        model.add_exactly_one(count_n)
        hosting = [number for content, number in zip(contents, gpus_with, strict=True) if expert in content]
        model.add(cp_model.LinearExpr.sum(hosting) == sum((n + 1) * chosen for n, chosen in enumerate(count_n)))


def split_load_evenly(
    model: cp_model.CpModel, numbers: LayerNumbers, count: list[Variables], share: list[Variables]
) -> None:
    """A replica carries its expert's load over the number of replicas."""
    for load_E, share_E in zip(numbers.load_WE.tolist(), share, strict=True):
        for load, carried, count_n in zip(load_E, share_E, count, strict=True):
            model.add(carried == sum(whole(load / (n + 1)) * chosen for n, chosen in enumerate(count_n)))


def mark_used_contents(model: cp_model.CpModel, gpus_with: Variables, used: Variables, *, gpus: int) -> None:
    """A content is used when at least one GPU holds it."""
    for number, marked in zip(gpus_with, used, strict=True):
        model.add(number <= gpus * marked)
        model.add(number >= marked)


def keep_contents_below_peaks(
    model: cp_model.CpModel, contents: Contents, used: Variables, share: list[Variables], peak_W: Variables
) -> None:
    """The shares of a used content add up to at most the window's peak."""
    for content, marked in zip(contents, used, strict=True):
        for share_E, peak in zip(share, peak_W, strict=True):
            model.add(cp_model.LinearExpr.sum([share_E[expert] for expert in content]) <= peak).only_enforce_if(marked)


def _share_variable(model: cp_model.CpModel, load: float, gpus: int) -> cp_model.IntVar:
    return model.new_int_var(whole(load / gpus), whole(load), "")


def _value(numbers: LayerNumbers, count: list[Variables]) -> cp_model.LinearExpr:
    """Worth: replicas times what each is worth."""
    worth_E = [whole_worth(value) for value in numbers.value_EM[:, 0].tolist()]
    worth: cp_model.LinearExpr = cp_model.LinearExpr.weighted_sum(
        [chosen for count_n in count for chosen in count_n],
        [worth * (n + 1) for worth, count_n in zip(worth_E, count, strict=True) for n in range(len(count_n))],
    )
    return worth


def _hint(
    model: cp_model.CpModel,
    contents: Contents,
    gpus_with: Variables,
    used: Variables,
    count: list[Variables],
    hint_EG: Bools,
) -> None:
    held = [tuple(np.flatnonzero(hosts_E).tolist()) for hosts_E in hint_EG.T]
    for content, number, marked in zip(contents, gpus_with, used, strict=True):
        model.add_hint(number, held.count(content))
        model.add_hint(marked, content in held)
    for replicas, count_n in zip(hint_EG.sum(axis=1).tolist(), count, strict=True):
        for n, chosen in enumerate(count_n):
            model.add_hint(chosen, n + 1 == replicas)


def _hosts(solver: cp_model.CpSolver, contents: Contents, gpus_with: Variables, *, experts: int) -> Bools:
    held = [content for content, number in zip(contents, gpus_with, strict=True) for _ in range(solver.value(number))]
    hosts_EG = np.zeros((experts, len(held)), dtype=np.bool_)
    for gpu, content in enumerate(held):
        hosts_EG[list(content), gpu] = True
    return hosts_EG
