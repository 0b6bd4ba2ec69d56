"""Plans for fewest copies per token, made from plans for locality under the same cap."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from placement.bounds import CopiesBound, copies_bound
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.notice import Notice
from placement.problem import Objective, Problem
from placement.solution import Bound, Solution, Status
from placement.solver.batches import MapTasks, task_map
from placement.solver.course import Course, Figure, Stage, Watch
from placement.solver.deadline import Deadline
from placement.solver.instance import instance_of
from placement.solver.overflow_limit import OVERFLOW_CAP_UNREACHABLE, limit_of, overflow_notices
from placement.solver.placing import Slots
from placement.solver.plans import Plans
from placement.solver.sticky import layout_of, running_slots
from placement.solver.traffic.nodes import with_nodes_arranged
from placement.solver.traffic.plan import TrafficPool, fill, nearest_as_good
from placement.solver.traffic.small_layers import RELAXATION
from placement.solver.traffic.tasks import TrafficSearcher, parts_of_layers, tokens_by_layer
from placement.token_sample import TokenSample

BASE_PART = 0.3
"""Part of a time limit for the plan for locality, from which the search starts and which gives the cap."""

PROOF_TOLERANCE = 1e-6
"""Copies are added up in single precision: within this part of the bound they equal it."""

ABOUT_LOCALITY = ("BEST_EFFORT_PLAN", "MOVE_BUDGET_BINDS", OVERFLOW_CAP_UNREACHABLE)
"""Notices of the plan for locality that say nothing about this one."""


@dataclass(frozen=True)
class TrafficEffort:
    """Seed, time and who searches, as in :func:`placement.solver.solve`."""

    seed: int
    time_limit_s: float | None
    threads: int
    map_tasks: MapTasks | None

    @property
    def base_limit_s(self) -> float | None:
        return None if self.time_limit_s is None else BASE_PART * self.time_limit_s

    def base(self, time_limit_s: float | None) -> dict[str, Any]:
        """Return the arguments of the plan for locality."""
        return {
            "seed": self.seed,
            "time_limit_s": time_limit_s,
            "threads": self.threads,
            "map_tasks": self.map_tasks,
        }


def for_locality(problem: Problem) -> Problem:
    """Return the same problem for locality."""
    return replace(problem, objective=Objective.LOCALITY, tokens=None)


def copies_count(problem: Problem) -> bool:
    """Tell whether copies are sent at all, and known."""
    return problem.tokens is not None and problem.dispatch is not Dispatch.EVEN


def solve_traffic(
    problem: Problem,
    bases: Callable[[Problem], Sequence[Solution]],
    *,
    effort: TrafficEffort,
    report: Callable[[float], None],
    watch: Watch,
) -> list[Solution]:
    """Improve plans for locality until copies per token are few.

    Parameters
    ----------
    problem
        Its ``tokens`` are what copies are counted on. Without them, and under ``even`` dispatch, where nothing is
        sent, the plans for locality are returned, and say why.
    bases
        Plans for another objective; called with the same problem for locality. The first is the plan, the others
        move less, and each is improved within its own number of moves.
    watch
        Told how the search for the first plan goes, once there is a plan for locality.

    Returns
    -------
    list of Solution
        One for each base, never with more copies, under the same cap.
    """
    started_s = time.perf_counter()
    deadline = Deadline.after(effort.time_limit_s)
    found = list(bases(problem))
    if problem.dispatch is Dispatch.EVEN:
        detail = "under even dispatch every GPU sees every token, so no copies are sent: planned for balance instead."
        return [
            _with_notice(each, Notice("TRAFFIC_UNDEFINED", detail), without=("LOCALITY_UNDEFINED",)) for each in found
        ]
    if problem.tokens is None:
        detail = (
            "copies per token depend on which experts a token needs together, and only counts are known: planned for "
            "locality instead; give token traces."
        )
        return [_with_notice(each, Notice("TRAFFIC_NEEDS_TOKENS", detail)) for each in found]
    report(0.2)
    course = Course(watch, Figure.GPUS_PER_TOKEN, found[0].max_imbalance, problem.slots_per_gpu)
    with task_map(effort.threads, effort.map_tasks) as map_tasks:
        pool = _pool(problem, problem.tokens, found[0], map_tasks, deadline, effort.seed)
        pool.see = lambda plans: course.see_figure(-plans.local, imbalance=plans.imbalance)
        running_LGP = running_slots(problem) if problem.current is not None or len(found) > 1 else None
        if problem.max_moved_slots is not None:
            running_LGP = running_slots(problem)
        base_slots = [_slots_of(each.layout, problem) for each in found]
        fill(pool, base_slots[0], running_LGP, lambda done: report(0.2 + 0.7 * done))
        for slots_LGP in base_slots[1:]:
            pool.add(slots_LGP)
        plans = [_chosen(pool, base, problem, running_LGP, number) for number, base in enumerate(found)]
        if problem.max_moved_slots is None and running_LGP is None:
            plans = [_arranged(pool, each) for each in plans]
    course.settle_figure(-plans[0].local, imbalance=plans[0].imbalance, stage=Stage.MOVES)
    late = deadline.passed
    # A sample's bound would say nothing about the recording.
    bound = None if late or not problem.tokens.is_whole else _bound(problem, problem.tokens, pool)
    course.prove_figure(None if bound is None else bound.value)
    report(1.0)
    solutions = []
    for base, plan in zip(found, plans, strict=True):
        proofs = base.bound
        if bound is not None:
            names = {**proofs.relaxation, "gpus_per_token": bound.relaxation}
            proofs = replace(proofs, gpus_per_token=bound.value, relaxation=names)
        solutions.append(
            Solution(
                layout=layout_of(problem, plan),
                status=_status(plan, proofs, base, problem),
                bound=proofs,
                max_imbalance=base.max_imbalance,
                solve_seconds=time.perf_counter() - started_s,
                notices=(
                    *_notices(base, plan, problem.tokens, late=late, time_limit_s=effort.time_limit_s),
                    *overflow_notices(problem, limit_of(problem, pool.instance), plan),
                ),
            )
        )
    return solutions


def _pool(
    problem: Problem, sample: TokenSample, base: Solution, map_tasks: MapTasks, deadline: Deadline, seed: int
) -> TrafficPool:
    instance, layers = instance_of(problem), problem.demand.moe_layers
    searcher = TrafficSearcher(
        instance,
        tokens_by_layer(sample.tokens, layers, instance),
        parts_of_layers(sample.tokens, layers),
        map_tasks,
        deadline,
        seed,
    )
    return TrafficPool(searcher, base.max_imbalance, limit_of(problem, instance))


def _bound(problem: Problem, sample: TokenSample, pool: TrafficPool) -> CopiesBound:
    """Prove how few copies there must be: by what can meet on a GPU, and for small layers by CP-SAT."""
    bound = copies_bound(sample.tokens, problem.topology, problem.slots_per_gpu)
    for place, copies in pool.fewest.items():
        bound = bound.with_layer(problem.demand.moe_layers[place], copies, RELAXATION)
    return bound


def _chosen(pool: TrafficPool, base: Solution, problem: Problem, running_LGP: Slots | None, number: int) -> Plans:
    """Choose the plan with fewest copies under the base's cap, within the moves that are allowed."""
    as_given = pool.searcher.measured(_slots_of(base.layout, problem))
    pool.cap = base.max_imbalance
    if pool.limit is not None:
        # What the plan for locality could not keep is not promised here either, but not made worse.
        pool.limit = replace(pool.limit, most=max(problem.max_overflow or 0.0, pool.limit.worst(as_given)))
    if number == 0 and problem.max_moved_slots is None:
        best = pool.fewest_copies() or as_given
        return best if running_LGP is None or problem.current is None else nearest_as_good(pool, best, running_LGP)
    if running_LGP is None:
        running_LGP = running_slots(problem)
    most = problem.max_moved_slots if number == 0 else None
    most = pool.moved(as_given, running_LGP) if most is None else most
    return pool.fewest_copies_within(most, running_LGP) or as_given


def _arranged(pool: TrafficPool, plans: Plans) -> Plans:
    arranged = with_nodes_arranged(pool.searcher, plans)
    return arranged if pool.fits(arranged) else plans


def _slots_of(layout: Layout, problem: Problem) -> Slots:
    layers = list(problem.demand.moe_layers)
    rows_LP = layout.slot_to_expert_LP[layers].astype("int64")
    return rows_LP.reshape(len(layers), problem.topology.gpus, problem.slots_per_gpu)


def _status(plan: Plans, bound: Bound, base: Solution, problem: Problem) -> Status:
    """Call a plan optimal when it has as many copies as are proven to be needed, under the cap asked for."""
    proven = bound.gpus_per_token
    reached = proven is not None and -plan.local <= proven * (1 + PROOF_TOLERANCE)
    planned_for = problem.dispatch is not Dispatch.NEAREST_STATIC
    return (
        Status.OPTIMAL if reached and planned_for and base.max_imbalance <= problem.max_imbalance else Status.FEASIBLE
    )


def _notices(
    base: Solution, plan: Plans, sample: TokenSample, *, late: bool, time_limit_s: float | None
) -> tuple[Notice, ...]:
    notices = [notice for notice in base.notices if notice.code not in ABOUT_LOCALITY]
    if not sample.is_whole:
        detail = (
            f"planned on {sample.tokens.tokens} of {sample.recorded_tokens} recorded tokens, whole requests drawn at "
            "random; what is proven about counts holds, nothing is proven about copies per token."
        )
        notices.append(Notice("TOKENS_SAMPLED", detail))
    if late:
        detail = (
            f"the time limit of {time_limit_s:g} s ended the search; this is the best layout so far: gpus_per_token "
            f"{-plan.local:.4f}, worst window's imbalance {plan.imbalance:.4f}."
        )
        notices.append(Notice("BEST_EFFORT_PLAN", detail))
    return tuple(notices)


def _with_notice(solution: Solution, notice: Notice, *, without: Sequence[str] = ()) -> Solution:
    kept = tuple(each for each in solution.notices if each.code not in without)
    return replace(solution, notices=(notice, *kept))
