"""The smallest number of slots per GPU with which a plan reaches a local share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from placement.bounds import local_gpu_bound, local_node_bound
from placement.dispatch import Dispatch
from placement.errors import BadOption, Infeasible
from placement.notice import Notice
from placement.problem import LocalScope, Problem
from placement.slots import smallest_slots_per_gpu
from placement.solution import Solution, Status
from placement.solver.batches import MapTasks
from placement.solver.course import Watch, unwatched
from placement.solver.deadline import Deadline
from placement.solver.instance import instance_of
from placement.solver.overflow_limit import OVERFLOW_CAP_UNREACHABLE
from placement.solver.plans import plans_of
from placement.solver.solving import solve


def fit(
    problem: Problem,
    *,
    local_target: float,
    most_slots_per_gpu: int | None = None,
    seed: int = 0,
    time_limit_s: float | None = None,
    threads: int = 1,
    map_tasks: MapTasks | None = None,
    progress: Callable[[float], None] | None = None,
    watch: Watch = unwatched,
) -> tuple[int, Solution]:
    """Find the fewest slots per GPU whose plan reaches ``local_target`` on the demand, and that plan.

    The search starts at the fewest slots whose proven bound reaches the target (fewer cannot) and goes up while the
    plan itself misses it. With every expert on every GPU everything is local, so without a limit there is an answer.

    Parameters
    ----------
    problem
        Its ``slots_per_gpu`` is not used; a current layout is used only at its own number of slots. Without
        ``max_moved_slots``: an engine that gets another number of slots starts anew.
    local_target
        Share of the problem's ``local_scope``, 0..1.
    most_slots_per_gpu
        Memory's limit, where there is one.
    time_limit_s
        For all plans together.
    threads, map_tasks
        As in :func:`solve`.
    progress
        Called with a part that is done, never going back. How many numbers of slots must be tried is not known: each is
        taken for half of what is left.
    watch
        As in :func:`solve`, for one number of slots after the other.

    Returns
    -------
    slots_per_gpu : int
    solution : Solution
        With status ``target_missed`` and the notice ``LOCAL_TARGET_MISSED`` where the limit of slots or of time came
        first.

    Raises
    ------
    BadOption
        The target is no share, nothing is local under ``even`` dispatch, fewer slots than experts are allowed, or
        moves are limited.
    Infeasible
        Even the most slots that may be used do not keep ``problem.max_overflow``.
    """
    started_s = time.perf_counter()
    deadline = Deadline.after(time_limit_s)
    needed, last = _range(problem, local_target, most_slots_per_gpu)
    for tries, slots_per_gpu in enumerate(range(min(needed, last), last + 1)):
        tried = _with_slots(problem, slots_per_gpu)
        left_s = None if time_limit_s is None else deadline.left_s
        try:
            solution = solve(
                tried,
                seed=seed,
                time_limit_s=left_s,
                threads=threads,
                map_tasks=map_tasks,
                progress=_half_of_the_rest(progress, tries),
                watch=watch,
            )
        except Infeasible:  # so few slots overflow whatever the layout
            if slots_per_gpu == last:
                raise
            continue
        share = _local_share(tried, solution)
        overflows = any(notice.code == OVERFLOW_CAP_UNREACHABLE for notice in solution.notices)
        if (share >= local_target and not overflows) or deadline.passed:
            break
    solution = replace(solution, solve_seconds=time.perf_counter() - started_s)
    if share < local_target:
        reason = f"at least {needed} are needed (proven)" if needed > last else f"{last} are the most that may be used"
        if slots_per_gpu < last:
            reason = f"the time limit of {time_limit_s:g} s ended the search there"
        detail = f"{slots_per_gpu} slots per GPU reach {share:.4f}, the target is {local_target:g}: {reason}."
        notices = (*solution.notices, Notice("LOCAL_TARGET_MISSED", detail))
        solution = replace(solution, status=Status.TARGET_MISSED, notices=notices)
    return slots_per_gpu, solution


def _half_of_the_rest(progress: Callable[[float], None] | None, tries: int) -> Callable[[float], None] | None:
    return None if progress is None else lambda done: progress(1 - 0.5**tries * (1 - done / 2))


def _range(problem: Problem, local_target: float, most_slots_per_gpu: int | None) -> tuple[int, int]:
    """Return the fewest slots per GPU that can reach the target, and the most that may be tried."""
    if not 0 <= local_target <= 1:
        raise BadOption(f"the local target is {local_target}; it is a share from 0 to 1, like 0.6.")
    if problem.dispatch is Dispatch.EVEN:
        raise BadOption("under even dispatch nothing is local, so no number of slots reaches a local target.")
    if problem.max_moved_slots is not None:
        raise BadOption(
            f"at most {problem.max_moved_slots} slots may move, but the number of slots is to be found; give it, or "
            "leave the limit out."
        )
    experts, gpus = problem.demand.experts, problem.topology.gpus
    fewest = smallest_slots_per_gpu(experts=experts, gpus=gpus)
    last = experts if most_slots_per_gpu is None else min(experts, most_slots_per_gpu)
    if last < fewest:
        raise BadOption(
            f"at most {most_slots_per_gpu} slots per GPU were allowed; {experts} experts on {gpus} GPUs need {fewest}."
        )
    bound = local_node_bound if problem.local_scope is LocalScope.NODE else local_gpu_bound
    too_few, needed = fewest - 1, experts
    while needed - too_few > 1:
        # One more slot never lowers the bound, and with every expert on every GPU it is 1.
        middle = (needed + too_few) // 2
        reached = bound(problem.demand, problem.topology, middle).share >= local_target
        too_few, needed = (too_few, middle) if reached else (middle, needed)
    return needed, last


def _with_slots(problem: Problem, slots_per_gpu: int) -> Problem:
    current = problem.current
    if current is not None and current.slots_per_gpu != slots_per_gpu:
        current = None
    return replace(problem, slots_per_gpu=slots_per_gpu, current=current)


def _local_share(problem: Problem, solution: Solution) -> float:
    layers = list(problem.demand.moe_layers)
    rows_LP = solution.layout.slot_to_expert_LP[layers].astype(np.int64)
    slots_LGP = rows_LP.reshape(len(layers), problem.topology.gpus, problem.slots_per_gpu)
    return plans_of(instance_of(problem), slots_LGP).local
