"""The plan of least predicted time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from placement.bounds import StepTimeBound, step_time_bound
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.notice import Notice
from placement.problem import Objective, Problem
from placement.solution import Bound, Solution, Status
from placement.solver.course import Course, Figure, Stage, Watch, unwatched
from placement.solver.deadline import Deadline
from placement.solver.instance import Floats, Ints, instance_of
from placement.solver.plans import Plans, plans_of
from placement.solver.starts import pack, replicas_by_load
from placement.solver.step_time.counted import CountedTokens
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

JUDGED_NUMBERS = 2**20
"""Numbers kept for tokens, sources and GPUs of a layer while plans are judged on a token trace."""

SEARCHED_NUMBERS = 2**18
"""The same while exchanges are tried."""

SHOWN = (Objective.LOCALITY.value, Objective.TRAFFIC.value)
"""Plans under the cap asked for, to be shown beside the fastest."""

PlanFor = Callable[[Problem, float | None], Solution]


def solve_step_time(
    problem: Problem,
    step: Step,
    plan_for: PlanFor,
    *,
    seed: int,
    time_limit_s: float | None,
    progress: Callable[[float], None],
    watch: Watch,
) -> Solution:
    """Plan for the least predicted time of a MoE layer.

    Parameters
    ----------
    problem
        Of the objective ``step-time``. Where it has tokens and the kernel sends a token once per GPU, copies are
        counted on them; else they are expected from counts.
    step
        Its step.
    plan_for
        Plans another objective of the same problem within a time limit.
    seed
        Of the exchanges that are drawn.
    watch
        Told how the search goes: first the mean over layers of the fastest plan to start from, then with every layer
        that was searched.

    Returns
    -------
    Solution
        ``max_imbalance`` is the cap asked for: it is tried as a start, and imbalance counts as the time that it costs.
    """
    started_s = time.perf_counter()
    deadline = Deadline.after(time_limit_s)
    asked = _other_plans(problem)
    limit_s = None if time_limit_s is None else START_PART * time_limit_s / len(asked)
    solutions = {}
    for name, each in asked.items():
        solutions[name] = plan_for(each, limit_s)
        progress(0.5 * len(solutions) / len(asked))
    starts = [_moe_slots(problem, solution.layout) for solution in solutions.values()] + [_spread(problem)]
    layers = list(problem.demand.moe_layers)
    running_LGP = running_slots(problem)
    proven = step_time_bound(problem)
    course = Course(watch, Figure.MOE_LAYER_S, None, problem.slots_per_gpu, bound=proven.seconds)
    start_L = None if watch is unwatched else _start_seconds(problem, step, starts)
    if start_L is not None:
        course.settle_figure(float(start_L.mean()), imbalance=None, stage=Stage.SEARCH)
    slots_LGP, seconds_L = [], []
    for index, layer in enumerate(layers):
        slots_GP, seconds = _best_of_layer(
            problem, step, layer, [each[index] for each in starts], running_LGP[index], seed=seed, deadline=deadline
        )
        slots_LGP.append(slots_GP)
        seconds_L.append(seconds)
        if start_L is not None:
            start_L[index] = seconds
            course.settle_figure(float(start_L.mean()), imbalance=None, stage=Stage.SEARCH)
        progress(0.5 + 0.5 * (index + 1) / len(layers))
    plans = plans_of(instance_of(problem), np.stack(slots_LGP))
    seconds = float(np.mean(seconds_L))
    reached = seconds <= proven.seconds * (1 + PROOF_TOLERANCE)
    # Tokens may have been thinned out, and what holds for the expectation need not hold for a static table.
    exact = problem.dispatch is not Dispatch.NEAREST_STATIC and not problem.counts_copies
    return Solution(
        layout=layout_of(problem, plans),
        status=Status.OPTIMAL if reached and exact else Status.FEASIBLE,
        bound=_bound(solutions, proven),
        max_imbalance=problem.max_imbalance,
        solve_seconds=time.perf_counter() - started_s,
        notices=_notices(problem, plans, late=deadline.passed, time_limit_s=time_limit_s),
        beside={name: solutions[name].layout for name in SHOWN if name in solutions},
    )


def _other_plans(problem: Problem) -> dict[str, Problem]:
    """Return the same problem for balance, for locality under several caps, and for traffic where copies are counted.

    The first, for balance, has no cap, so that what is proven of it is proven of all layouts.
    """
    balance = replace(problem, objective=Objective.BALANCE, step=None, tokens=None)
    if problem.dispatch is Dispatch.EVEN:
        return {Objective.BALANCE.value: balance}
    asked = {Objective.BALANCE.value: balance, Objective.LOCALITY.value: replace(balance, objective=Objective.LOCALITY)}
    for cap in (cap for cap in CAPS if cap > problem.max_imbalance):
        asked[f"locality within {cap:g}"] = replace(balance, objective=Objective.LOCALITY, max_imbalance=cap)
    if problem.counts_copies:
        asked[Objective.TRAFFIC.value] = replace(problem, objective=Objective.TRAFFIC, step=None)
    return asked


def _spread(problem: Problem) -> Ints:
    """Return the quickest layout: replicas by load, packed evenly."""
    instance = instance_of(problem)
    return pack(instance, replicas_by_load(instance.total_WLE, gpus=instance.gpus, slots=instance.slots))


def _bound(solutions: Mapping[str, Solution], proven: StepTimeBound) -> Bound:
    """Return what is proven of all layouts."""
    bound, traffic = solutions[Objective.BALANCE.value].bound, solutions.get(Objective.TRAFFIC.value)
    if traffic is not None and traffic.bound.gpus_per_token is not None:
        copies = {"gpus_per_token": traffic.bound.relaxation["gpus_per_token"]}
        bound = replace(bound, gpus_per_token=traffic.bound.gpus_per_token, relaxation={**bound.relaxation, **copies})
    return replace(bound, moe_layer_s=proven.seconds, relaxation={**bound.relaxation, "moe_layer_s": proven.relaxation})


def _moe_slots(problem: Problem, layout: Layout) -> Ints:
    layers = list(problem.demand.moe_layers)
    rows_LP = layout.slot_to_expert_LP[layers].astype(np.int64)
    return rows_LP.reshape(len(layers), problem.topology.gpus, problem.slots_per_gpu)


def _start_seconds(problem: Problem, step: Step, starts: Sequence[Ints]) -> Floats:
    """Predict every layer under the fastest of the plans to start from; float64 [L]."""
    seconds_L = np.empty(len(problem.demand.moe_layers))
    for index, layer in enumerate(problem.demand.moe_layers):
        times, judged = layer_times(problem, step, layer), _tokens(problem, layer, JUDGED_NUMBERS)
        seconds_L[index] = min(LayerSearch.start(times, each[index], judged).seconds for each in starts)
    return seconds_L


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
    judged, searched = (_tokens(problem, layer, numbers) for numbers in (JUDGED_NUMBERS, SEARCHED_NUMBERS))

    def seconds(slots_GP: Ints) -> float:
        return LayerSearch.start(times, slots_GP, judged).seconds

    running = [running_GP] if _has_no_twins(running_GP) else []
    found = [(seconds(slots_GP), slots_GP) for slots_GP in (*starts, *running)]
    stays_s = found[-1][0] if problem.current is not None and running else None
    best_s, best_GP = min(found, key=lambda each: each[0])
    search = LayerSearch.start(times, best_GP, searched)
    touched = BATCH * times.tokens_WS.size * problem.topology.gpus
    rounds = max(1, min(MOST_ROUNDS, int(WORK / len(problem.demand.moe_layers) / touched)))
    search.improve(rounds=rounds, seed=seed, deadline=deadline)
    improved_s = seconds(search.slots_GP)
    if improved_s < best_s:
        best_s, best_GP = improved_s, search.slots_GP
    if stays_s is not None and stays_s <= best_s * (1 + WORTH_MOVING):
        return running_GP, stays_s
    return best_GP, best_s


def _tokens(problem: Problem, layer: int, most_numbers: int) -> CountedTokens | None:
    if problem.tokens is None or not problem.counts_copies:
        return None
    windows, topology = problem.demand.windows, problem.topology
    return CountedTokens.of_layer(
        problem.tokens.tokens, layer, windows=windows, topology=topology, most_numbers=most_numbers
    )


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
    sample = problem.tokens
    if sample is not None and problem.counts_copies and not sample.is_whole:
        detail = (
            f"copies were counted on {sample.tokens.tokens} of {sample.recorded_tokens} recorded tokens, whole "
            "requests drawn at random."
        )
        notices.append(Notice("TOKENS_SAMPLED", detail))
    if late:
        detail = f"the time limit of {time_limit_s:g} s ended the search; this is the best layout so far."
        notices.append(Notice("BEST_EFFORT_PLAN", detail))
    return tuple(notices)
