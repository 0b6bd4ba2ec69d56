"""What a demand is worth with other numbers of slots: a plan for each, beside what is proven."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from placement import solver
from placement.bounds import fewest_slots_for_local_gpu, local_gpu_bound
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.problem import Objective, Problem
from placement.score import score
from placement.slots import smallest_slots_per_gpu
from placement.solver.deadline import Deadline

BEYOND_TARGET = 1.25
"""The largest number of slots is so many times what the target needs."""


@dataclass(frozen=True)
class PlannedSlots:
    """One number of slots.

    Attributes
    ----------
    slots_per_gpu : int
    local_gpu : float or None
        Of a plan made for these slots, by the ruler; None where nothing is local.
    local_gpu_bound : float or None
        No layout passes this (proven).
    imbalance : float
        The worst window's, of that plan.
    """

    slots_per_gpu: int
    local_gpu: float | None
    local_gpu_bound: float | None
    imbalance: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def slots_worth_planning(problem: Problem, *, local_target: float, rows: int) -> list[int]:
    """Spread ``rows`` numbers from the fewest slots to somewhat more than the target needs.

    The problem's own number is one of them, and so is the fewest whose bound reaches the target.

    Raises
    ------
    BadOption
        Fewer than two rows.
    """
    if rows < 2:
        raise BadOption(f"{rows} rows were asked for; a curve has 2 or more.")
    demand, topology = problem.demand, problem.topology
    fewest = smallest_slots_per_gpu(experts=demand.experts, gpus=topology.gpus)
    most, inside = max(2 * fewest, problem.slots_per_gpu), {problem.slots_per_gpu}
    if problem.dispatch is not Dispatch.EVEN:
        needed = fewest_slots_for_local_gpu(demand, topology, local_target)
        most, inside = max(problem.slots_per_gpu, int(np.ceil(BEYOND_TARGET * needed))), {*inside, needed}
    most = min(most, demand.experts)
    spread = np.unique(np.linspace(fewest, most, num=min(rows, most - fewest + 1)).round().astype(int)).tolist()
    return sorted({*spread, *inside})


def plan_by_slots(
    problem: Problem,
    numbers: Iterable[int],
    *,
    seed: int = 0,
    threads: int = 1,
    time_limit_s: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[PlannedSlots, ...]:
    """Plan for every number of slots: locality under the problem's cap on imbalance, balance where nothing is local.

    The search is the local one (no exact models), so a row may be a little below what a plan for these slots finds.

    Parameters
    ----------
    problem
        Its slots, running layout and limits on moves and overflow are not used.
    time_limit_s
        For all plans together.
    """
    numbers, rows = list(numbers), []
    deadline = Deadline.after(time_limit_s)
    even = problem.dispatch is Dispatch.EVEN
    for index, slots in enumerate(numbers):
        asked = replace(
            problem,
            slots_per_gpu=slots,
            objective=Objective.BALANCE if even else Objective.LOCALITY,
            current=None,
            max_moved_slots=None,
            max_overflow=None,
            tokens=None,
            step=None,
        )
        limit_s = None if time_limit_s is None else deadline.part(1 / (len(numbers) - index)).left_s
        solution = solver.solve(asked, seed=seed, threads=threads, time_limit_s=limit_s, exact_seconds=0)
        metrics = score(solution.layout, asked.demand, asked.topology, dispatch=asked.dispatch)
        bound = None if even else local_gpu_bound(asked.demand, asked.topology, slots).share
        rows.append(PlannedSlots(slots, metrics.local_gpu, bound, metrics.worst_window.imbalance))
        if progress is not None:
            progress((index + 1) / len(numbers))
    return tuple(rows)
