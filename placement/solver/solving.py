"""The public seam: from a problem to a layout with what is proven about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from placement.dispatch import Dispatch
from placement.problem import Objective, Problem
from placement.solution import Solution, Status
from placement.solver.batches import MapTasks, Searcher, task_map
from placement.solver.course import Stage, Watch, course_of, unwatched
from placement.solver.deadline import Deadline
from placement.solver.exact_stage import ExactStage
from placement.solver.generation import Pool
from placement.solver.hedging import hedge
from placement.solver.instance import instance_of
from placement.solver.local_search import effort_for
from placement.solver.move_budget import fewest_moves, keep_within
from placement.solver.move_pool import MovePool, move_pool
from placement.solver.notices import localises, notices_of
from placement.solver.overflow_limit import (
    OverflowLimit,
    keep_overflow_below,
    keep_overflow_within_moves,
    limit_of,
    overflow_notices,
)
from placement.solver.proofs import first_proofs, with_capped_local, with_window_imbalance
from placement.solver.refine import ExactEffort
from placement.solver.stages import Outcome, Stages
from placement.solver.staying import stay_close
from placement.solver.step_time import solve_step_time
from placement.solver.sticky import layout_of, moved_slots, running_slots
from placement.solver.traffic import TrafficEffort, copies_count, for_locality, solve_traffic

PROOF_TOLERANCE = 1e-8
"""A figure within this part of its bound equals it: rounding on both sides, no more."""

EXACT_SECONDS = 6.0
"""Deterministic seconds of CP-SAT for small layers, without a time limit."""

EXACT_PART = 0.6
"""Part of a time limit that CP-SAT may use."""

BOUND_SECONDS = 0.5
"""Effort for each bound over host sets."""

BOUND_PART = 0.1
"""Part of a time limit that such a bound may use; it is left out where less than that is left."""


def solve(
    problem: Problem,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    threads: int = 1,
    map_tasks: MapTasks | None = None,
    exact_seconds: float | None = None,
    progress: Callable[[float], None] | None = None,
    watch: Watch = unwatched,
) -> Solution:
    """Plan a layout.

    Parameters
    ----------
    problem
    seed
        Of everything random. The same problem, seed and limit give the same layout, whatever the threads, unless
        the wall clock ended the search.
    time_limit_s
        Wall-clock limit; on reaching it the best layout so far is returned with the notice ``BEST_EFFORT_PLAN``.
        Without one a plan takes a few seconds for 58 layers x 256 experts on 32 GPUs.
    threads
        Layers are searched on so many threads.
    map_tasks
        Who searches layers instead: anything like the built-in ``map``, say over processes or machines. The layout
        is the same.
    exact_seconds
        Deterministic seconds of CP-SAT on small layers, ``EXACT_SECONDS`` by default or a part of the time limit; 0
        leaves every layer to the local search.
    progress
        Called with the part that is done, 0..1, never going back.
    watch
        Called with the best plan so far and the bound whenever one of them changes; see
        :mod:`placement.solver.course`.

    Returns
    -------
    Solution
        Its layout holds every expert at least once per layer, none twice on a GPU. ``optimal`` only when the plan's
        figure equals a proven bound, up to ``PROOF_TOLERANCE``.

    Raises
    ------
    Infeasible
        ``problem.max_moved_slots`` is too small to replace what the running layout holds twice on a GPU, or it is
        proven that no layout keeps ``problem.max_overflow``.
    """
    if problem.objective is Objective.TRAFFIC:
        effort = TrafficEffort(seed, time_limit_s, threads, map_tasks)

        def base(same: Problem) -> list[Solution]:
            limit_s = effort.base_limit_s if copies_count(same) else time_limit_s
            seen = unwatched if copies_count(same) else watch
            return [solve(for_locality(same), **effort.base(limit_s), exact_seconds=exact_seconds, watch=seen)]

        return solve_traffic(problem, base, effort=effort, report=progress or _silent, watch=watch)[0]
    if problem.objective is Objective.STEP_TIME and problem.step is not None:
        return solve_step_time(
            problem,
            problem.step,
            lambda start, limit_s: solve(
                start, seed=seed, time_limit_s=limit_s, threads=threads, map_tasks=map_tasks, exact_seconds=0
            ),
            seed=seed,
            time_limit_s=time_limit_s,
            progress=progress or _silent,
            watch=watch,
        )
    (solution,) = _solutions(
        problem,
        lambda _: (problem.max_moved_slots,),
        effort=_Effort(seed, time_limit_s, threads, exact_seconds, map_tasks),
        report=progress or _silent,
        watch=watch,
    )
    return solution


def solve_within_shares(
    problem: Problem,
    shares: Sequence[float],
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    threads: int = 1,
    map_tasks: MapTasks | None = None,
    progress: Callable[[float], None] | None = None,
    watch: Watch = unwatched,
) -> tuple[Solution, tuple[Solution, ...]]:
    """Plan as :func:`solve` does, and once more within each of several shares of the moves of a free plan.

    Parameters
    ----------
    shares
        Of the slots that the plan without ``max_moved_slots`` moves, 0..1, ascending.
    seed, time_limit_s, threads, map_tasks, progress
        As in :func:`solve`; the limit is for all plans together.
    watch
        As in :func:`solve`, for the first plan.

    Returns
    -------
    solution : Solution
        What :func:`solve` returns.
    within : tuple of Solution
        One for each share; what the running layout holds twice on a GPU moves in any case.
    """

    if problem.objective is Objective.TRAFFIC:
        effort = TrafficEffort(seed, time_limit_s, threads, map_tasks)

        def bases(same: Problem) -> list[Solution]:
            limit_s = effort.base_limit_s if copies_count(same) else time_limit_s
            seen = unwatched if copies_count(same) else watch
            free, less = solve_within_shares(for_locality(same), shares, **effort.base(limit_s), watch=seen)
            return [free, *less]

        first, *others = solve_traffic(problem, bases, effort=effort, report=progress or _silent, watch=watch)
        return first, tuple(others)

    def budgets(moved: int) -> list[int | None]:
        fewest = fewest_moves(problem)
        # Large budgets first: their columns are where small ones start from.
        return [problem.max_moved_slots, *(max(fewest, int(share * moved)) for share in reversed(shares))]

    first, *others = _solutions(
        problem,
        budgets,
        effort=_Effort(seed, time_limit_s, threads, None, map_tasks),
        report=progress or _silent,
        watch=watch,
    )
    return first, tuple(reversed(others))


@dataclass(frozen=True)
class _Effort:
    seed: int
    time_limit_s: float | None
    threads: int
    exact_seconds: float | None
    map_tasks: MapTasks | None = None

    def exact(self, deadline: Deadline) -> ExactEffort:
        usual_s = EXACT_SECONDS if self.time_limit_s is None else EXACT_PART * self.time_limit_s
        seconds = usual_s if self.exact_seconds is None else self.exact_seconds
        return ExactEffort(seconds, self.threads, self.seed, deadline)

    def bound_s(self, deadline: Deadline) -> float:
        """Return the effort for a bound at the end; 0 where it would overrun the time limit."""
        if self.time_limit_s is None:
            return BOUND_SECONDS
        effort_s = min(BOUND_SECONDS, BOUND_PART * self.time_limit_s)
        return effort_s if deadline.left_s >= effort_s else 0.0


def _solutions(
    problem: Problem,
    budgets_of: Callable[[int], Sequence[int | None]],
    *,
    effort: _Effort,
    report: Callable[[float], None],
    watch: Watch,
) -> list[Solution]:
    """Plan freely, then within every budget of moves that is made of the moves of the free plan (None: any)."""
    started_s = time.perf_counter()
    deadline = Deadline.after(effort.time_limit_s)
    instance = instance_of(problem)
    limit = limit_of(problem, instance)
    proofs = first_proofs(problem)
    course = course_of(problem, proofs, watch)
    solutions: list[Solution] = []
    with task_map(effort.threads, effort.map_tasks) as map_tasks:
        searcher = Searcher(instance, map_tasks, deadline, effort.seed)
        pool = Pool(searcher, effort_for(instance), see=course.see)
        exact = ExactStage(instance, effort.exact(deadline), prove=course.prove)
        stages = Stages(instance, problem.demand.moe_layers, pool, exact, proofs, report, course)
        free = stages.run(problem.objective, cap=problem.max_imbalance)
        course.settle(free.plans, Stage.SEARCH)
        if problem.hedge and localises(problem):
            free = hedge(stages, free, part=problem.hedge, least_local=problem.least_local)
            course.settle(free.plans, Stage.HEDGE)
        if limit is not None:
            free = keep_overflow_below(stages, free, limit, objective=problem.objective)
            course.settle(free.plans, Stage.OVERFLOW)
        if problem.current is not None:
            near = stay_close(stages, free, running_slots(problem), objective=problem.objective)
            free = near if limit is None or limit.worst(near.plans) <= limit.allowed(free.plans) else free
            course.settle(free.plans, Stage.STAY)
        budgets = budgets_of(moved_slots(free.plans.slots_LGP, running_slots(problem), experts=instance.experts))
        for most_moved, outcome in zip(budgets, _within(stages, problem, free, budgets, limit), strict=True):
            late = deadline.passed
            if problem.dispatch is Dispatch.NEAREST_STATIC:
                # What CP-SAT proved holds for the expectation, not for the table.
                outcome = replace(outcome, proofs=proofs)
            elif not late:
                outcome = _with_more_proofs(problem, outcome, effort_s=effort.bound_s(deadline))
            if not solutions:  # the plan that was asked for; those that move less follow
                course.settle(outcome.plans, Stage.MOVES)
                course.prove(outcome.proofs)
            within = replace(problem, max_moved_slots=most_moved)
            over_limit = overflow_notices(within, limit, outcome.plans)
            solutions.append(
                Solution(
                    layout=layout_of(problem, outcome.plans),
                    status=Status.FEASIBLE if over_limit else _status(problem, outcome),
                    bound=outcome.proofs.bound,
                    max_imbalance=outcome.cap,
                    solve_seconds=time.perf_counter() - started_s,
                    notices=(
                        *notices_of(within, outcome, free, late=late, time_limit_s=effort.time_limit_s),
                        *over_limit,
                    ),
                )
            )
    report(1.0)
    return solutions


def _within(
    stages: Stages, problem: Problem, free: Outcome, budgets: Sequence[int | None], limit: OverflowLimit | None
) -> Iterator[Outcome]:
    """Give the plan within every budget of moves, the free plan where there is none."""
    pool: MovePool | None = None
    for most_moved in budgets:
        if most_moved is None:
            yield free
            continue
        pool = pool or move_pool(stages, running_slots(problem), free)
        outcome = keep_within(pool, stages, free, most_moved=most_moved, objective=problem.objective)
        yield outcome if limit is None else keep_overflow_within_moves(pool, stages.pool, outcome, limit, most_moved)


def _silent(_: float) -> None:
    """Report to nobody."""


def _with_more_proofs(problem: Problem, outcome: Outcome, *, effort_s: float) -> Outcome:
    """Tighten what is not proven optimal by the relaxations that see all windows, if there is time for it.

    For locality the imbalance too where the cap was out of reach: the smallest reachable one comes first then.
    """
    if not effort_s or _status(problem, outcome) is Status.OPTIMAL:
        return outcome
    proofs = outcome.proofs
    if not localises(problem) or outcome.cap > problem.max_imbalance:
        proofs = with_window_imbalance(proofs, problem, effort_s=effort_s)
    if localises(problem):
        proofs = with_capped_local(proofs, problem, cap=outcome.cap, effort_s=effort_s)
    return replace(outcome, proofs=proofs)


def _status(problem: Problem, outcome: Outcome) -> Status:
    """Call a plan optimal when its figures equal their bounds; never under a table that was not planned for."""
    plans, proofs = outcome.plans, outcome.proofs
    if problem.dispatch is Dispatch.NEAREST_STATIC:
        return Status.FEASIBLE
    flattest = plans.imbalance <= proofs.imbalance * (1 + PROOF_TOLERANCE)
    if not localises(problem):
        return Status.OPTIMAL if flattest else Status.FEASIBLE
    cap_is_right = outcome.cap <= problem.max_imbalance or flattest
    most_local = plans.local >= proofs.local * (1 - PROOF_TOLERANCE)
    return Status.OPTIMAL if cap_is_right and most_local else Status.FEASIBLE
