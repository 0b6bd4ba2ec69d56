"""Plans under a cap on overflow: tokens above a capacity factor times the mean GPU load.

A window's overflow share adds up over its layers as its imbalance does, so a cap on it is one more row per window of
the master over columns. The search knows peaks alone, but what lowers a layer's peaks lowers its overflow: the duals
of the overflow rows become prices of peaks, and the master then takes flatter layouts in the layers that overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from placement.bounds import overflow_bound, smallest_capacity_factor, smallest_slots_for_overflow
from placement.errors import Infeasible
from placement.notice import Notice
from placement.problem import Objective, Problem
from placement.solver.generation import (
    CHOICE_EFFORT,
    PRICE_STEP,
    SLIGHTEST_PRICE,
    STEEPEST_PRICE,
    TIE_WEIGHT,
    Pool,
)
from placement.solver.goal import CAP_SLACK
from placement.solver.instance import Floats, Instance
from placement.solver.model.columns import choose_under_cap, prices_under_cap
from placement.solver.model.exchanges import Columns
from placement.solver.model.move_budget import BudgetedColumns
from placement.solver.move_pool import MovePool
from placement.solver.placing import Placing
from placement.solver.plans import Plans, combine
from placement.solver.stages import Outcome, Stages

OVERFLOW_CAP_UNREACHABLE = "OVERFLOW_CAP_UNREACHABLE"

ROUNDING = 1e-9
"""Overflow below this part of the mean load is rounding, for the ruler too; shares that differ by less are equal."""

ROUNDS = 4
"""Searches at the duals of the overflow rows."""

BISECTIONS = 12
"""Choices tried on the way to the smallest cap that can be kept."""


@dataclass(frozen=True, eq=False)
class OverflowLimit:
    """At most ``most`` of every window's demand above ``factor`` times the mean GPU load."""

    instance: Instance
    factor: float
    most: float
    overflow_of: dict[int, tuple[Plans, Floats]] = field(default_factory=dict)
    """What was worked out already, by the identity of the plans (which are kept, so that it stays theirs)."""

    def overflow_WL(self, plans: Plans) -> Floats:
        """Return the share of a window's demand that overflows in each layer, float64 [W, L]."""
        known = self.overflow_of.get(id(plans))
        if known is None:
            above_WLG = Placing(self.instance, plans.slots_LGP).loads_WLG - self.factor
            above_WLG[above_WLG <= ROUNDING] = 0.0
            known = plans, self.instance.weight_WL * above_WLG.sum(axis=2) / self.instance.gpus
            self.overflow_of[id(plans)] = known
        return known[1]

    def worst(self, plans: Plans) -> float:
        """Return the largest overflow share of any window."""
        return float(self.overflow_WL(plans).sum(axis=1).max())

    def kept(self, plans: Plans) -> bool:
        return self.worst(plans) <= self.most + ROUNDING

    def allowed(self, plans: Plans) -> float:
        """Return what another plan may overflow to be as good as this one."""
        return max(self.most, self.worst(plans)) + ROUNDING

    def with_rows(self, columns: Columns, plans: Sequence[Plans], *, cap: float) -> Columns:
        """Add a row per window that is within the cap on peaks when the window's overflow is within its own.

        An overflow that is too large by itself is written as twice the cap, so that small limits make no huge numbers.
        """
        overflow_CWL = np.stack([self.overflow_WL(each) for each in plans])
        rows_CWL = np.minimum(overflow_CWL * (cap / max(self.most, ROUNDING)), 2 * cap)
        return Columns(columns.local_CL, np.concatenate([columns.peak_CWL, rows_CWL], axis=1))


def limit_of(problem: Problem, instance: Instance) -> OverflowLimit | None:
    """Return the problem's cap on overflow, None where it has none.

    Raises
    ------
    Infeasible
        It is proven that no layout keeps it; says what is short, and what would do.
    """
    if problem.max_overflow is None:
        return None
    demand, topology, slots = problem.demand, problem.topology, problem.slots_per_gpu
    factor, most = problem.capacity_factor, problem.max_overflow
    bound = overflow_bound(demand, topology, slots, problem.dispatch, capacity_factor=factor)
    if bound.overflow_share <= most + ROUNDING:
        return OverflowLimit(instance, factor, most)
    where = f"window {demand.window_names[bound.window]!r}, layer {bound.layer}"
    if bound.experts:
        short = f"in {where} the {bound.experts} most loaded experts fit on {bound.hosts} GPUs at most"
    else:
        short = f"in {where} some GPU is above that in every layout"
    remedies = [f"allow --max-overflow {np.ceil(bound.overflow_share * 1e4) / 1e4:g} or more"]
    enough = smallest_capacity_factor(demand, topology, slots, max_overflow=most)
    if enough > factor:
        remedies.append(f"raise --capacity-factor to {np.ceil(enough * 1e4) / 1e4:g} or more")
    more = smallest_slots_for_overflow(demand, topology, slots, capacity_factor=factor, max_overflow=most)
    if more is not None and more > slots:
        remedies.append(f"give {more} slots per GPU or more")
    raise Infeasible(
        f"no layout keeps overflow_share at or below {most:g} at the capacity factor {factor:g}: {short}, so at least "
        f"{bound.overflow_share:.4f} overflows (proven).",
        remedies=tuple(remedies),
    )


def keep_overflow_below(stages: Stages, outcome: Outcome, limit: OverflowLimit, *, objective: Objective) -> Outcome:
    """Return the best plan found under the cap on overflow, or one with the smallest overflow found.

    The imbalance cap (for balance: the smallest worst window) comes second only where the overflow cap can be kept by
    giving some of it up; for locality both are kept together.
    """
    if limit.kept(outcome.plans):
        return outcome
    localises = stages.localises(objective)
    pool = stages.pool
    pool.add([outcome.plans])
    for price_W in _ladder(stages.instance.windows):
        if pool.out_of_time:
            break
        pool.search(price_W=price_W, local_weight=1.0 if localises else TIE_WEIGHT)
    cap = outcome.cap if localises else outcome.plans.imbalance
    _add_at_duals(pool, limit, cap=cap, local_weight=1.0 if localises else TIE_WEIGHT)
    if localises:
        best = _best(pool, limit, cap=cap)
    else:
        best = _smallest(lambda value: _best(pool, limit, cap=value), low=cap, high=float(stages.instance.gpus))
    return replace(outcome, plans=best or _least_overflow(pool, limit, cap=cap))


def keep_overflow_within_moves(
    pool: MovePool, more: Pool, outcome: Outcome, limit: OverflowLimit, moves: int
) -> Outcome:
    """Return a plan under the cap on overflow that moves at most ``moves`` slots, if columns make one up."""
    if limit.kept(outcome.plans):
        return outcome
    columns = [*pool.columns, *more.columns]
    cap = max(outcome.cap, outcome.plans.imbalance) * (1 + CAP_SLACK)
    budgeted = BudgetedColumns(_columns(columns), np.stack([pool.moved_L(plans) for plans in columns]), moves)
    rows = limit.with_rows(budgeted.as_window(cap), columns, cap=cap)
    chosen_L = choose_under_cap(rows, cap=cap, seed=pool.searcher.seed, effort=CHOICE_EFFORT)
    mixed = [] if chosen_L is None else [combine(columns, chosen_L)]
    fitting = [
        plans
        for plans in [*columns, *mixed]
        if pool.moved(plans) <= moves and plans.imbalance <= cap and limit.kept(plans)
    ]
    best = max(fitting, key=lambda plans: (plans.local, -plans.imbalance), default=None)
    return outcome if best is None else replace(outcome, plans=best)


def overflow_notices(problem: Problem, limit: OverflowLimit | None, plans: Plans) -> tuple[Notice, ...]:
    """Say so where the cap on overflow is not kept."""
    if limit is None or limit.kept(plans):
        return ()
    within = "" if problem.max_moved_slots is None else f" with at most {problem.max_moved_slots} moved slots"
    detail = (
        f"no layout was found that keeps overflow_share of every window at or below {limit.most:g} at the capacity "
        f"factor {limit.factor:g}{within}; the plan has {limit.worst(plans):.4f} in the worst window. More "
        "slots per GPU, a higher capacity factor or a higher --max-overflow would do."
    )
    return (Notice(OVERFLOW_CAP_UNREACHABLE, detail),)


def _ladder(windows: int) -> Iterator[Floats]:
    """Give prices on peaks from slight to steep: per layer, columns from local to flat."""
    price = SLIGHTEST_PRICE * PRICE_STEP
    while price < STEEPEST_PRICE * PRICE_STEP:
        yield np.full(windows, price)
        price *= PRICE_STEP


def _add_at_duals(pool: Pool, limit: OverflowLimit, *, cap: float, local_weight: float) -> None:
    """Search where the overflow rows say that peaks cost most, while mixtures keep the caps and get better."""
    price_W: Floats | None = None
    last = -np.inf
    for _ in range(ROUNDS):
        found = prices_under_cap(limit.with_rows(pool.master(), pool.columns, cap=cap), cap=cap)
        if found is None or pool.out_of_time or found[0] <= last * (1 + pool.effort.stall):
            return
        last, dual_W = found
        per_peak = cap / max(limit.most, ROUNDING) / limit.instance.gpus
        wanted_W = dual_W[: pool.windows] + np.minimum(dual_W[pool.windows :] * per_peak, STEEPEST_PRICE)
        price_W = wanted_W if price_W is None else (price_W + wanted_W) / 2
        pool.search(price_W=price_W, local_weight=local_weight)


def _best(pool: Pool, limit: OverflowLimit, *, cap: float) -> Plans | None:
    """Mix the columns for most local share under both caps."""
    cap *= 1 + CAP_SLACK
    rows = limit.with_rows(pool.master(), pool.columns, cap=cap)
    chosen_L = choose_under_cap(rows, cap=cap, seed=pool.searcher.seed, effort=CHOICE_EFFORT)
    mixed = [] if chosen_L is None else [combine(pool.columns, chosen_L)]
    fitting = [plans for plans in [*pool.columns, *mixed] if plans.imbalance <= cap and limit.kept(plans)]
    return max(fitting, key=lambda plans: (plans.local, -plans.imbalance), default=None)


def _least_overflow(pool: Pool, limit: OverflowLimit, *, cap: float) -> Plans:
    """Mix the columns for the smallest overflow of the worst window under the cap on imbalance."""
    under = [plans for plans in pool.columns if plans.imbalance <= cap * (1 + CAP_SLACK)]
    least = min(under or pool.columns, key=limit.worst)

    def within(most: float) -> Plans | None:
        return _best(pool, replace(limit, most=most), cap=max(cap, least.imbalance))

    return _smallest(within, low=limit.most, high=limit.worst(least)) or least


def _smallest(within: Callable[[float], Plans | None], *, low: float, high: float) -> Plans | None:
    """Return what comes with the smallest value for which there is anything, by bisection; None if there is not."""
    best = within(high)
    for _ in range(BISECTIONS if best is not None else 0):
        middle = (low + high) / 2
        found = within(middle)
        best, low, high = (best, middle, high) if found is None else (found, low, middle)
    return best


def _columns(plans: Sequence[Plans]) -> Columns:
    return Columns(np.stack([each.local_L for each in plans]), np.stack([each.peak_WL for each in plans]))
