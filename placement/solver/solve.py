"""The public seam: from a problem to a layout with what is proven about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from placement.dispatch import Dispatch
from placement.notice import Notice
from placement.problem import LocalScope, Objective, Problem
from placement.solution import Solution, Status
from placement.solver.batches import MapTasks, Searcher, task_map
from placement.solver.deadline import Deadline
from placement.solver.exact_stage import ExactStage
from placement.solver.generation import Pool
from placement.solver.instance import instance_of
from placement.solver.local_search import effort_for
from placement.solver.proofs import first_proofs, with_capped_local, with_host_set_imbalance
from placement.solver.refine import ExactEffort
from placement.solver.stages import Outcome, Stages
from placement.solver.staying import stay_close
from placement.solver.sticky import current_slots, layout_of

PROOF_TOLERANCE = 1e-8
"""A figure within this part of its bound equals it: rounding on both sides, no more."""

EXACT_SECONDS = 12.0
"""Deterministic seconds of CP-SAT for small layers, without a time limit."""

EXACT_PART = 0.6
"""Part of a time limit that CP-SAT may use."""

BOUND_SECONDS = 0.5
"""Effort for each bound over host sets."""


def solve(
    problem: Problem,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    threads: int = 1,
    map_tasks: MapTasks | None = None,
    progress: Callable[[float], None] | None = None,
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
    progress
        Called with the part that is done, 0..1, never going back.

    Returns
    -------
    Solution
        Its layout holds every expert at least once per layer, none twice on a GPU. ``optimal`` only when the plan's
        figure equals a proven bound, up to ``PROOF_TOLERANCE``.
    """
    started_s = time.perf_counter()
    deadline = Deadline.after(time_limit_s)
    report = progress or _silent
    instance = instance_of(problem)
    proofs = first_proofs(problem)
    exact_s = EXACT_SECONDS if time_limit_s is None else EXACT_PART * time_limit_s
    with task_map(threads, map_tasks) as mapped:
        pool = Pool(Searcher(instance, mapped, deadline, seed), effort_for(instance))
        exact = ExactStage(instance, ExactEffort(exact_s, threads, seed, deadline))
        stages = Stages(instance, problem.demand.moe_layers, pool, exact, proofs, report)
        outcome = stages.run(problem.objective, cap=problem.max_imbalance)
        if (current_LGP := current_slots(problem)) is not None:
            outcome = stay_close(stages, outcome, current_LGP, objective=problem.objective)
    late = deadline.passed
    if problem.dispatch is Dispatch.NEAREST_STATIC:
        # What CP-SAT proved holds for the expectation, not for the table.
        outcome = replace(outcome, proofs=proofs)
    elif not late:
        outcome = _with_more_proofs(problem, outcome)
    report(1.0)
    return Solution(
        layout=layout_of(problem, outcome.plans),
        status=_status(problem, outcome),
        bound=outcome.proofs.bound,
        max_imbalance=outcome.cap,
        solve_seconds=time.perf_counter() - started_s,
        notices=_notices(problem, outcome, late=late, time_limit_s=time_limit_s),
    )


def _silent(_: float) -> None:
    """Report to nobody."""


def _with_more_proofs(problem: Problem, outcome: Outcome) -> Outcome:
    """Tighten what is not proven optimal by the relaxations over host sets."""
    if _status(problem, outcome) is Status.OPTIMAL:
        return outcome
    if _localises(problem):
        proofs = with_capped_local(outcome.proofs, problem, cap=outcome.cap, effort_s=BOUND_SECONDS)
    else:
        proofs = with_host_set_imbalance(outcome.proofs, problem, effort_s=BOUND_SECONDS)
    return replace(outcome, proofs=proofs)


def _localises(problem: Problem) -> bool:
    return problem.objective is Objective.LOCALITY and problem.dispatch is not Dispatch.EVEN


def _status(problem: Problem, outcome: Outcome) -> Status:
    """Call a plan optimal when its figures equal their bounds; never under a table that was not planned for."""
    plans, proofs = outcome.plans, outcome.proofs
    if problem.dispatch is Dispatch.NEAREST_STATIC:
        return Status.FEASIBLE
    flattest = plans.imbalance <= proofs.imbalance * (1 + PROOF_TOLERANCE)
    if not _localises(problem):
        return Status.OPTIMAL if flattest else Status.FEASIBLE
    cap_is_right = outcome.cap <= problem.max_imbalance or flattest
    most_local = plans.local >= proofs.local * (1 - PROOF_TOLERANCE)
    return Status.OPTIMAL if cap_is_right and most_local else Status.FEASIBLE


def _notices(problem: Problem, outcome: Outcome, *, late: bool, time_limit_s: float | None) -> tuple[Notice, ...]:
    plans, proofs = outcome.plans, outcome.proofs
    notices = []
    if problem.objective is Objective.LOCALITY and problem.dispatch is Dispatch.EVEN:
        detail = "under even dispatch every rank sees every token, so nothing is local: planned for balance instead."
        notices.append(Notice("LOCALITY_UNDEFINED", detail))
    if problem.dispatch is Dispatch.NEAREST_STATIC:
        detail = (
            "static dispatch draws a fixed table from the finished layout: planned for its expectation, "
            "nearest-dynamic; evaluate shows the loads of the table itself."
        )
        notices.append(Notice("PLANNED_FOR_DYNAMIC", detail))
    if _localises(problem) and outcome.cap > problem.max_imbalance:
        detail = (
            f"no layout was found that keeps the imbalance of every window at or below {problem.max_imbalance:g}; "
            f"the smallest found for the worst window is {outcome.cap:.4f} (proven: not below "
            f"{proofs.imbalance:.4f}), and that is the cap of this plan."
        )
        notices.append(Notice("IMBALANCE_CAP_UNREACHABLE", detail))
    if late:
        detail = f"the time limit of {time_limit_s:g} s ended the search; this is the best layout so far: "
        detail += f"worst window's imbalance {plans.imbalance:.4f} (proven: not below {proofs.imbalance:.4f})"
        if _localises(problem):
            name = "local_node" if problem.local_scope is LocalScope.NODE else "local_gpu"
            detail += f", {name} {plans.local:.4f} (proven: not above {proofs.local:.4f})"
        notices.append(Notice("BEST_EFFORT_PLAN", detail + "."))
    return tuple(notices)
