"""The plan of least predicted time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from placement.bounds import step_time_bound
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.notice import Notice
from placement.problem import Objective, Problem
from placement.solution import Bound, Solution, Status
from placement.solver.deadline import Deadline
from placement.solver.instance import Ints, instance_of
from placement.solver.plans import Plans, plans_of
from placement.solver.step_time.layer import layer_times
from placement.solver.step_time.search import BATCH, LayerSearch
from placement.solver.sticky import WORTH_MOVING, layout_of, running_slots
from placement.step_time import Step

CAPS = (1.2, 2.0)
"""Caps on imbalance, beside the one asked for, for which a local plan is tried."""

WORK = 2e8
"""Values (windows x sources x GPUs) that exchanges may touch, all layers together."""

MOST_ROUNDS = 150

PROOF_TOLERANCE = 1e-8

START_PART = 0.5
"""Part of a time limit for the plans to start from."""

PlanFor = Callable[[Problem, float | None], Solution]


def solve_step_time(
    problem: Problem,
    step: Step,
    plan_for: PlanFor,
    *,
    seed: int,
    time_limit_s: float | None,
    progress: Callable[[float], None],
) -> Solution:
    """Plan for the least predicted time of a MoE layer.

    Parameters
    ----------
    problem
        Of the objective ``step-time``.
    step
        Its step.
    plan_for
        Plans another objective of the same problem within a time limit.
    seed
        Of the exchanges that are drawn.

    Returns
    -------
    Solution
        ``max_imbalance`` is the cap asked for: it is tried as a start, and imbalance counts as the time that it costs.
    """
    started_s = time.perf_counter()
    deadline = Deadline.after(time_limit_s)
    starts, beside, bounds = _starts(problem, plan_for, time_limit_s=time_limit_s, progress=progress)
    layers = list(problem.demand.moe_layers)
    running_LGP = running_slots(problem)
    slots_LGP, seconds_L = [], []
    for index, layer in enumerate(layers):
        slots_GP, seconds = _best_of_layer(
            problem, step, layer, [each[index] for each in starts], running_LGP[index], seed=seed, deadline=deadline
        )
        slots_LGP.append(slots_GP)
        seconds_L.append(seconds)
        progress(0.5 + 0.5 * (index + 1) / len(layers))
    plans = plans_of(instance_of(problem), np.stack(slots_LGP))
    seconds = float(np.mean(seconds_L))
    proven = step_time_bound(problem)
    bound = replace(
        bounds, moe_layer_s=proven.seconds, relaxation={**bounds.relaxation, "moe_layer_s": proven.relaxation}
    )
    reached = problem.dispatch is not Dispatch.NEAREST_STATIC and seconds <= proven.seconds * (1 + PROOF_TOLERANCE)
    return Solution(
        layout=layout_of(problem, plans),
        status=Status.OPTIMAL if reached else Status.FEASIBLE,
        bound=bound,
        max_imbalance=problem.max_imbalance,
        solve_seconds=time.perf_counter() - started_s,
        notices=_notices(problem, plans, late=deadline.passed, time_limit_s=time_limit_s),
        beside=beside,
    )


def _starts(
    problem: Problem, plan_for: PlanFor, *, time_limit_s: float | None, progress: Callable[[float], None]
) -> tuple[list[Ints], dict[str, Layout], Bound]:
    """Plan for balance and for locality under several caps.

    Returns
    -------
    list
        The MoE rows of every plan.
    dict
        The plan for locality under the cap asked for, to be shown beside the fastest.
    Bound
        What was proven of all layouts: that of the plan for balance, which no cap went into.
    """
    asked = [replace(problem, objective=Objective.BALANCE, step=None)]
    if problem.dispatch is not Dispatch.EVEN:
        caps = dict.fromkeys((problem.max_imbalance, *(cap for cap in CAPS if cap > problem.max_imbalance)))
        asked += [replace(asked[0], objective=Objective.LOCALITY, max_imbalance=cap) for cap in caps]
    limit_s = None if time_limit_s is None else START_PART * time_limit_s / len(asked)
    solutions = []
    for index, each in enumerate(asked):
        solutions.append(plan_for(each, limit_s))
        progress(0.5 * (index + 1) / len(asked))
    beside = {asked[1].objective.value: solutions[1].layout} if len(asked) > 1 else {}
    return [_moe_slots(problem, solution.layout) for solution in solutions], beside, solutions[0].bound


def _moe_slots(problem: Problem, layout: Layout) -> Ints:
    layers = list(problem.demand.moe_layers)
    rows_LP = layout.slot_to_expert_LP[layers].astype(np.int64)
    return rows_LP.reshape(len(layers), problem.topology.gpus, problem.slots_per_gpu)


def _best_of_layer(
    problem: Problem,
    step: Step,
    layer: int,
    starts: Sequence[Ints],
    running_GP: Ints,
    *,
    seed: int,
    deadline: Deadline,
) -> tuple[Ints, float]:
    """Improve the fastest start by exchanges; what runs stays where it is as fast."""
    times = layer_times(problem, step, layer)
    running = [running_GP] if _has_no_twins(running_GP) else []
    searches = [LayerSearch.start(times, slots_GP) for slots_GP in (*starts, *running)]
    best = min(searches, key=lambda search: search.seconds)
    touched = BATCH * times.tokens_WS.size * problem.topology.gpus
    rounds = max(1, min(MOST_ROUNDS, int(WORK / len(problem.demand.moe_layers) / touched)))
    stays = searches[-1].seconds if problem.current is not None and running else None
    best.improve(rounds=rounds, seed=seed, deadline=deadline)
    if stays is not None and stays <= best.seconds * (1 + WORTH_MOVING):
        return running_GP, stays
    return best.slots_GP, best.seconds


def _has_no_twins(slots_GP: Ints) -> bool:
    return all(len(np.unique(row_P)) == len(row_P) for row_P in slots_GP)


def _notices(problem: Problem, plans: Plans, *, late: bool, time_limit_s: float | None) -> tuple[Notice, ...]:
    notices = []
    if problem.dispatch is Dispatch.NEAREST_STATIC:
        detail = (
            "static dispatch draws a fixed table from the finished layout: planned for its expectation, "
            "nearest-dynamic; evaluate shows the loads of the table itself."
        )
        notices.append(Notice("PLANNED_FOR_DYNAMIC", detail))
    if plans.imbalance > problem.max_imbalance * (1 + 1e-9):
        detail = (
            f"the fastest layout found has a worst window's imbalance of {plans.imbalance:.4f}, above "
            f"{problem.max_imbalance:g}: in this objective imbalance counts as the time that it costs."
        )
        notices.append(Notice("IMBALANCE_COUNTED_AS_TIME", detail))
    if late:
        detail = f"the time limit of {time_limit_s:g} s ended the search; this is the best layout so far."
        notices.append(Notice("BEST_EFFORT_PLAN", detail))
    return tuple(notices)
