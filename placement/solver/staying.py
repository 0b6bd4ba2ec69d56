"""Prefer what runs: the layout itself where it is as good, else the plan near it that moves least."""

from __future__ import annotations

from dataclasses import replace

from placement.problem import Objective
from placement.solver.generation import TIE_WEIGHT
from placement.solver.goal import CAP_SLACK
from placement.solver.model.move_budget import prices_of_smallest_peak_within, prices_under_cap_within
from placement.solver.move_budget import ROUNDS_ON_THE_WAY, add_flatter, add_more_local, add_steps
from placement.solver.move_pool import MovePool, move_pool
from placement.solver.placing import Slots
from placement.solver.plans import Plans
from placement.solver.stages import Outcome, Stages
from placement.solver.sticky import WORTH_MOVING

SEARCHED, CHOSEN = 4, 4
"""Numbers of moves tried with columns searched for them, and then with the columns that are there."""


def stay_close(stages: Stages, outcome: Outcome, running_LGP: Slots, *, objective: Objective) -> Outcome:
    """Choose among plans that are equally good, up to ``WORTH_MOVING``, the one that moves fewest experts.

    The fewest moves that suffice are found by bisection.
    """
    pool = move_pool(stages, running_LGP, outcome)
    if _as_good(pool.start, outcome, stages, objective):
        return replace(outcome, plans=pool.start)
    localises = stages.localises(objective)
    best = min(outcome.plans, pool.renamed, key=pool.moved)
    _add_from_running(pool, outcome, pool.moved(best), localises=localises)
    too_few = 0
    for step in range(SEARCHED + CHOSEN):
        budget = (too_few + pool.moved(best)) // 2
        if budget <= too_few or stages.pool.out_of_time:
            break
        if step < SEARCHED:
            _add_columns(pool, outcome, budget, localises=localises)
        found = _best_within(pool, outcome, budget, localises=localises)
        if found is not None and _as_good(found, outcome, stages, objective):
            best = found
        else:
            too_few = budget
    return replace(outcome, plans=best)


def _as_good(plans: Plans, outcome: Outcome, stages: Stages, objective: Objective) -> bool:
    if not stages.localises(objective):
        return plans.imbalance <= outcome.plans.imbalance * (1 + WORTH_MOVING)
    within = plans.imbalance <= max(outcome.cap, outcome.plans.imbalance) * (1 + CAP_SLACK)
    return within and plans.local >= outcome.plans.local * (1 - WORTH_MOVING)


def _add_from_running(pool: MovePool, outcome: Outcome, most_moved: int, *, localises: bool) -> None:
    """Add what the search finds from the running layout on, as if moves were free, and small steps to there."""
    master = pool.master(most_moved)
    prices = prices_under_cap_within(master, cap=outcome.cap) if localises else prices_of_smallest_peak_within(master)
    local_weight = 1.0 if localises else TIE_WEIGHT
    if prices is not None:
        pool.search_from(pool.start, replace(prices, price_of_a_move=0.0), local_weight=local_weight)
    add_steps(pool, prices, local_weight=local_weight)


def _add_columns(pool: MovePool, outcome: Outcome, most_moved: int, *, localises: bool) -> None:
    """Add columns until mixtures within the budget are quite as good: whole columns are a little worse."""
    good_enough = outcome.plans.imbalance
    if localises:
        good_enough = max(outcome.cap * (1 - WORTH_MOVING), outcome.plans.imbalance)
    add_flatter(pool, most_moved, good_enough=good_enough, rounds=ROUNDS_ON_THE_WAY)
    if localises:
        close_enough = outcome.plans.local
        add_more_local(pool, most_moved, cap=outcome.cap, close_enough=close_enough, rounds=ROUNDS_ON_THE_WAY)


def _best_within(pool: MovePool, outcome: Outcome, most_moved: int, *, localises: bool) -> Plans | None:
    return pool.most_local(most_moved, cap=outcome.cap) if localises else pool.flattest(most_moved)
