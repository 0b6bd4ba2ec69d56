"""One small layer without replicas: which GPU holds which expert for fewest copies, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOAD_SCALE = 2**32
"""CP-SAT takes integers: a load of one mean is this many units."""


@dataclass(frozen=True, eq=False)
class ExpertSets:
    """Tokens of a layer by the set of experts they need, and by home where that is known.

    Attributes
    ----------
    experts_of : tuple of tuple of int
        One set each.
    tokens_U : ndarray
        int64 [U], tokens with that set.
    home_U : ndarray or None
        int64 [U], None for uniform homes.
    """

    experts_of: tuple[tuple[int, ...], ...]
    tokens_U: Ints
    home_U: Ints | None


@dataclass(frozen=True, eq=False)
class FewestCopies:
    """The best arrangement found, and how many GPUs (remote ones where homes are known) all tokens need at least.

    ``gpu_E`` is None where none was found in time.
    """

    gpu_E: Ints | None
    at_least: float


def arrange(
    sets: ExpertSets,
    *,
    hint_E: Ints,
    gpus: int,
    load_WE: Floats,
    ceiling: float | None,
    seed: int,
    effort: float,
    time_limit_s: float,
) -> FewestCopies:
    """Place every expert of a layer on one GPU.

    Parameters
    ----------
    hint_E
        An arrangement to start from.
    load_WE
        Loads in means, per window.
    ceiling
        Largest load of a GPU in any window; None for any, which is a relaxation of every plan.
    effort, time_limit_s
        Deterministic seconds, and seconds of the clock.
    """
    model = cp_model.CpModel()
    held = one_gpu_each(model, experts=len(hint_E), gpus=gpus, hint_E=hint_E)
    if sets.home_U is None:
        name_first_gpu(model, held)
    if ceiling is not None:
        keep_loads_below(model, held, load_WE, ceiling=ceiling)
    needed = gpus_needed(model, held, sets)
    model.minimize(cp_model.LinearExpr.weighted_sum([gpu for gpu, _ in needed], [tokens for _, tokens in needed]))
    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # or Ctrl-C would end the process without unwinding
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    if time_limit_s < float("inf"):
        solver.parameters.max_time_in_seconds = time_limit_s
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return FewestCopies(None, 0.0 if status == cp_model.INFEASIBLE else solver.best_objective_bound)
    gpu_E = np.array(
        [[solver.boolean_value(held[expert][gpu]) for gpu in range(gpus)] for expert in range(len(hint_E))]
    )
    return FewestCopies(gpu_E.argmax(axis=1), solver.best_objective_bound)


def one_gpu_each(model: cp_model.CpModel, *, experts: int, gpus: int, hint_E: Ints) -> list[list[cp_model.IntVar]]:
    """Every expert is on one GPU, and every GPU holds as many."""
    held = [[model.new_bool_var("") for _ in range(gpus)] for _ in range(experts)]
    for expert in range(experts):
        model.add_exactly_one(held[expert])
        for gpu in range(gpus):
            model.add_hint(held[expert][gpu], bool(hint_E[expert] == gpu))
    for gpu in range(gpus):
        model.add(sum(held[expert][gpu] for expert in range(experts)) == experts // gpus)
    return held


def name_first_gpu(model: cp_model.CpModel, held: list[list[cp_model.IntVar]]) -> None:
    """GPUs are alike: expert 0 may be on the first, expert 1 on one of the first two, and so on."""
    for expert, gpus in enumerate(held):
        for gpu in range(expert + 1, len(gpus)):
            model.add(gpus[gpu] == 0)


def keep_loads_below(
    model: cp_model.CpModel, held: list[list[cp_model.IntVar]], load_WE: Floats, *, ceiling: float
) -> None:
    """No GPU's load passes the ceiling in any window; loads are rounded up."""
    for load_E in np.ceil(load_WE * LOAD_SCALE).astype(np.int64).tolist():
        for gpu in range(len(held[0])):
            on_gpu = [gpus[gpu] for gpus in held]
            model.add(cp_model.LinearExpr.weighted_sum(on_gpu, load_E) <= int(ceiling * LOAD_SCALE))


def gpus_needed(
    model: cp_model.CpModel, held: list[list[cp_model.IntVar]], sets: ExpertSets
) -> list[tuple[cp_model.IntVar, int]]:
    """A set needs the GPUs of its experts, its own home left out; with the tokens that have it."""
    needed = []
    for number, (experts, tokens) in enumerate(zip(sets.experts_of, sets.tokens_U.tolist(), strict=True)):
        for gpu in range(len(held[0])):
            if sets.home_U is not None and sets.home_U[number] == gpu:
                continue
            need = model.new_bool_var("")
            for expert in experts:
                model.add_implication(held[expert][gpu], need)
            needed.append((need, tokens))
    return needed
