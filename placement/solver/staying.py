"""Prefer what runs: the layout itself where it is as good, else the plan near it that moves least."""

from __future__ import annotations

from dataclasses import replace

from placement.problem import Objective
from placement.solver.generation import CAP_SLACK, Pool, balance, localise
from placement.solver.placing import Slots
from placement.solver.plans import Plans, plans_of
from placement.solver.stages import Outcome, Stages
from placement.solver.sticky import WORTH_MOVING, moved_slots, with_gpus_renamed


def stay_close(stages: Stages, outcome: Outcome, current_LGP: Slots, *, objective: Objective) -> Outcome:
    """Choose among plans that are equally good, up to ``WORTH_MOVING``, the one that moves fewest experts."""
    current = plans_of(stages.instance, current_LGP)
    if _as_good(current, outcome, stages, objective):
        return replace(outcome, plans=current)
    renamed = with_gpus_renamed(stages.instance, outcome.plans, current_LGP)
    candidates = [outcome.plans, renamed, *_from_current(stages, outcome, current, objective)]
    good = [plans for plans in candidates if _as_good(plans, outcome, stages, objective)]
    fewest = min(good, key=lambda plans: moved_slots(plans.slots_LGP, current_LGP, experts=stages.instance.experts))
    return replace(outcome, plans=fewest)


def _as_good(plans: Plans, outcome: Outcome, stages: Stages, objective: Objective) -> bool:
    if not stages.localises(objective):
        return plans.imbalance <= outcome.plans.imbalance * (1 + WORTH_MOVING)
    within = plans.imbalance <= max(outcome.cap, outcome.plans.imbalance) * (1 + CAP_SLACK)
    return within and plans.local >= outcome.plans.local * (1 - WORTH_MOVING)


def _from_current(stages: Stages, outcome: Outcome, current: Plans, objective: Objective) -> list[Plans]:
    """Search from the running layout on, with the same goal."""
    pool = Pool(stages.pool.searcher, stages.pool.effort, [current])
    if stages.localises(objective):
        localise(pool, cap=outcome.cap, close_enough=outcome.plans.local)
        found = pool.best_under_cap(outcome.cap)
        return [] if found is None else [found]
    balance(pool, good_enough=outcome.plans.imbalance)
    return [pool.best_balanced()]
