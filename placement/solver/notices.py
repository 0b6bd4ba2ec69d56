"""What a solution has to say beside its figures."""

from __future__ import annotations

from placement.dispatch import Dispatch
from placement.notice import Notice
from placement.problem import LocalScope, Objective, Problem
from placement.solver.stages import Outcome
from placement.solver.sticky import moved_slots, running_slots

ROUNDING = 1e-9
"""Figures that differ by this part are equal."""


def localises(problem: Problem) -> bool:
    """Tell whether the plan is for locality: asked for, and there is such a thing."""
    return problem.objective is Objective.LOCALITY and problem.dispatch is not Dispatch.EVEN


def notices_of(
    problem: Problem, outcome: Outcome, free: Outcome, *, late: bool, time_limit_s: float | None
) -> tuple[Notice, ...]:
    """Say where the plan is not simply what was asked for.

    Parameters
    ----------
    outcome, free
        The plan, and the plan without a limit on moves; the same where there is no limit or it does not bind.
    late
        Whether the deadline had passed.
    """
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
    if localises(problem) and outcome.cap > problem.max_imbalance and outcome.cap == free.cap:
        detail = (
            f"no layout was found that keeps the imbalance of every window at or below {problem.max_imbalance:g}; "
            f"the smallest found for the worst window is {outcome.cap:.4f} (proven: not below "
            f"{proofs.imbalance:.4f}), and that is the cap of this plan."
        )
        notices.append(Notice("IMBALANCE_CAP_UNREACHABLE", detail))
    if _is_worse(problem, outcome, free):
        notices.append(_budget_binds(problem, outcome, free))
    if late:
        detail = f"the time limit of {time_limit_s:g} s ended the search; this is the best layout so far: "
        detail += f"worst window's imbalance {plans.imbalance:.4f} (proven: not below {proofs.imbalance:.4f})"
        if localises(problem):
            detail += f", {_share(problem)} {plans.local:.4f} (proven: not above {proofs.local:.4f})"
        notices.append(Notice("BEST_EFFORT_PLAN", detail + "."))
    return tuple(notices)


def _is_worse(problem: Problem, outcome: Outcome, free: Outcome) -> bool:
    if localises(problem):
        return outcome.plans.local < free.plans.local * (1 - ROUNDING) or outcome.cap > free.cap
    return outcome.plans.imbalance > free.plans.imbalance * (1 + ROUNDING)


def _budget_binds(problem: Problem, outcome: Outcome, free: Outcome) -> Notice:
    within, without = (_reached(problem, each) for each in (outcome, free))
    detail = f"at most {problem.max_moved_slots} slots may move: the plan {within}; without that limit it {without}."
    if localises(problem) and outcome.cap > free.cap:
        detail = f"{detail[:-1]}, and only so is the imbalance at or below {free.cap:.4g} in every window."
    return Notice("MOVE_BUDGET_BINDS", detail)


def _reached(problem: Problem, outcome: Outcome) -> str:
    plans = outcome.plans
    moved = moved_slots(plans.slots_LGP, running_slots(problem), experts=problem.demand.experts)
    figures = f"moves {moved} and has a worst window's imbalance of {plans.imbalance:.4f}"
    return f"{figures} and {_share(problem)} {plans.local:.4f}" if localises(problem) else figures


def _share(problem: Problem) -> str:
    return "local_node" if problem.local_scope is LocalScope.NODE else "local_gpu"
