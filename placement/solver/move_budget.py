"""The best plan that moves at most so many slots.

Moves are one more budget that ties the layers together: the master over columns gets a row for them, and its dual is
the price of a move. At that price the local search pays experts for staying where they are, so its columns lie between
the running layout and the plan that moves freely, those changes first that gain most per moved slot. At the end every
layer takes one column, within the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from placement.errors import Infeasible
from placement.problem import Objective, Problem
from placement.solver.generation import TIE_WEIGHT
from placement.solver.goal import CAP_SLACK
from placement.solver.model.move_budget import Prices, prices_of_smallest_peak_within, prices_under_cap_within
from placement.solver.move_pool import MovePool
from placement.solver.plans import Plans
from placement.solver.stages import Outcome, Stages
from placement.solver.starts import hosts_of_slots
from placement.solver.sticky import running_slots

ROUNDS = 6
"""Columns looked for at the master's prices, per budget and goal."""

ROUNDS_ON_THE_WAY = 3
"""The same for the budgets between the free plan's moves and the one asked for."""

HALVINGS = 4
"""How often the free plan's moves are halved on the way to a small budget, at most."""

FEW_LAYERS = 8
"""Layers up to which columns are added in small steps."""

ROOM = 4e-3
"""How far below the cap mixtures are brought, so that whole columns can keep it."""

STALLS = 2
"""Rounds without progress after which no more columns are looked for."""


def fewest_moves(problem: Problem) -> int:
    """Count what the running layout holds twice on a GPU: no plan does, so at least so many slots move."""
    running_LGP = running_slots(problem)
    return running_LGP.size - int(hosts_of_slots(running_LGP, experts=problem.demand.experts).sum())


def keep_within(pool: MovePool, stages: Stages, wanted: Outcome, *, most_moved: int, objective: Objective) -> Outcome:
    """Return the best plan found that moves at most ``most_moved`` slots.

    For locality the cap comes first: where it cannot be kept within the budget the smallest imbalance that can is
    found, and used.

    Raises
    ------
    Infeasible
        The running layout holds experts twice on a GPU, and replacing those alone moves more.
    """
    fewest = pool.moved(pool.start)
    if fewest > most_moved:
        raise Infeasible(
            f"the running layout holds {fewest} experts twice on one GPU, and a plan without that moves at least so "
            f"many slots; {most_moved} may move.",
            remedies=(f"allow {fewest} moved slots or more",),
        )
    if pool.moved(wanted.plans) <= most_moved:
        return wanted
    localises = stages.localises(objective)
    if most_moved == 0:
        plans = pool.start
    else:
        _approach(pool, wanted, most_moved, localises=localises)
        plans = _most_local(pool, wanted, most_moved) if localises else _flattest(pool, wanted, most_moved)
        pool.columns.append(plans)
    if not localises or plans.imbalance <= wanted.cap * (1 + CAP_SLACK):
        return replace(wanted, plans=plans)
    # What was proven on the local share may hold under the smaller cap only.
    bound = wanted.proofs.bound
    proofs = stages.proofs.with_imbalance(wanted.proofs.imbalance, bound.relaxation.get("imbalance", ""))
    return Outcome(plans, plans.imbalance, proofs)


def _flattest(pool: MovePool, wanted: Outcome, most_moved: int) -> Plans:
    """Look for the smallest worst window; of equal ones the most local."""
    add_flatter(pool, most_moved, good_enough=wanted.plans.imbalance)
    add_steps(pool, prices_of_smallest_peak_within(pool.master(most_moved)), local_weight=TIE_WEIGHT)
    flattest = pool.flattest(most_moved)
    return pool.most_local(most_moved, cap=flattest.imbalance) or flattest


def _most_local(pool: MovePool, wanted: Outcome, most_moved: int) -> Plans:
    """Look for the most local share under the cap, or under the smallest imbalance within the budget."""
    close_enough = wanted.plans.local
    add_flatter(pool, most_moved, good_enough=wanted.cap * (1 - ROOM))
    add_more_local(pool, most_moved, cap=wanted.cap, close_enough=close_enough)
    add_steps(pool, prices_under_cap_within(pool.master(most_moved), cap=wanted.cap), local_weight=1.0)
    plans = pool.most_local(most_moved, cap=wanted.cap)
    if plans is None:
        add_steps(pool, prices_of_smallest_peak_within(pool.master(most_moved)), local_weight=TIE_WEIGHT)
        # The flatter the columns, the more of them fit.
        add_flatter(pool, most_moved, good_enough=1.0)
        plans = pool.most_local(most_moved, cap=wanted.cap)
    if plans is None:
        flattest = pool.flattest(most_moved)
        add_more_local(pool, most_moved, cap=flattest.imbalance, close_enough=close_enough)
        plans = pool.most_local(most_moved, cap=flattest.imbalance) or flattest
    return plans


def _approach(pool: MovePool, wanted: Outcome, most_moved: int, *, localises: bool) -> None:
    """Add columns for half the free plan's moves, a quarter and so on, down to the budget asked for.

    Columns found on the way back from the free plan are better than those found from the running layout on: that
    is a poor place to start from, whose nearest local optimum is poor too.
    """
    for halvings in range(1, HALVINGS + 1):
        budget = pool.moved(wanted.plans) >> halvings
        if budget <= most_moved:
            return
        if budget in pool.passed:
            continue
        good_enough = wanted.cap * (1 - ROOM) if localises else wanted.plans.imbalance
        add_flatter(pool, budget, good_enough=good_enough, rounds=ROUNDS_ON_THE_WAY)
        if localises:
            close_enough = wanted.plans.local
            add_more_local(pool, budget, cap=wanted.cap, close_enough=close_enough, rounds=ROUNDS_ON_THE_WAY)
        pool.passed.add(budget)


def add_steps(pool: MovePool, prices: Prices | None, *, local_weight: float) -> None:
    """Add columns in small steps where there are few layers: those are mixed coarsely, a budget needs finer ones."""
    if prices is not None and pool.instance.layers <= FEW_LAYERS:
        pool.walk(prices, local_weight=local_weight)


def add_flatter(pool: MovePool, most_moved: int, *, good_enough: float, rounds: int = ROUNDS) -> None:
    """Add columns for a smaller worst window within the budget."""

    def priced() -> Prices | None:
        found = prices_of_smallest_peak_within(pool.master(most_moved))
        return None if found is None or found.value <= good_enough else found

    _generate(pool, priced, local_weight=TIE_WEIGHT, rounds=rounds)


def add_more_local(pool: MovePool, most_moved: int, *, cap: float, close_enough: float, rounds: int = ROUNDS) -> None:
    """Add columns for more local share under the cap within the budget."""

    def priced() -> Prices | None:
        found = prices_under_cap_within(pool.master(most_moved), cap=cap * (1 + CAP_SLACK))
        return None if found is None or found.value >= close_enough else found

    _generate(pool, priced, local_weight=1.0, rounds=rounds)


def _generate(pool: MovePool, priced: Callable[[], Prices | None], *, local_weight: float, rounds: int) -> None:
    """Search at the master's prices, averaged with the ones before, while that gains anything."""
    last, stalled, prices = None, 0, None
    for _ in range(rounds):
        found = priced()
        if found is None or pool.searcher.deadline.passed:
            return
        if last is not None:
            stalled = stalled + 1 if abs(found.value - last) <= pool.effort.stall * abs(last) else 0
        if stalled == STALLS:
            return
        last = found.value
        prices = found if prices is None else _between(prices, found)
        pool.search(prices, local_weight=local_weight)


def _between(a: Prices, b: Prices) -> Prices:
    return replace(b, price_W=(a.price_W + b.price_W) / 2, price_of_a_move=(a.price_of_a_move + b.price_of_a_move) / 2)
