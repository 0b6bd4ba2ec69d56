"""The best plan that moves at most so many slots.

Moves are one more budget that ties the layers together: the master over columns gets a row for them, and its dual is
the price of a move. At that price the local search pays experts for staying where they are, so its columns lie between
the running layout and the plan that moves freely, those changes first that gain most per moved slot. At the end every
layer takes one column, within the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from placement.errors import Infeasible
from placement.problem import Objective, Problem
from placement.solver.batches import Searcher
from placement.solver.generation import CAP_SLACK, CHOICE_EFFORT, TIE_WEIGHT
from placement.solver.instance import Bools, Floats, Instance, Ints
from placement.solver.local_search import Effort
from placement.solver.model.exchanges import Columns
from placement.solver.model.move_budget import (
    BudgetedColumns,
    Prices,
    choose_smallest_peak_within,
    choose_under_cap_within,
    prices_of_smallest_peak_within,
    prices_under_cap_within,
)
from placement.solver.placing import Slots
from placement.solver.plans import Plans, combine, plans_of
from placement.solver.stages import Outcome, Stages
from placement.solver.starts import hosts_of_slots
from placement.solver.sticky import running_slots, with_gpus_renamed

ROUNDS = 6
"""Columns looked for at the master's prices, per budget and goal."""

ROUNDS_ON_THE_WAY = 3
"""The same for the budgets between the free plan's moves and the one asked for."""

HALVINGS = 4
"""How often the free plan's moves are halved on the way to a small budget, at most."""

FEW_LAYERS = 8
STEPS = 16
"""Steps of one replacement or swap per layer that are kept as columns, up to so many layers."""

ONE_REPLACEMENT = Effort(doublings=(6,), tours=0, hot_steps=0, replacements=1)
ONE_SWAP = Effort(doublings=(6,), tours=0, hot_steps=1, replacements=0)

ROOM = 4e-3
"""How far below the cap mixtures are brought, so that whole columns can keep it."""

STALLS = 2
"""Rounds without progress after which no more columns are looked for."""


@dataclass(frozen=True, eq=False)
class MovePool:
    """Columns with what each moves from the running layout; layers mix freely, within a budget.

    Attributes
    ----------
    searcher : Searcher
    effort : Effort
    start : Plans
        The running layout; what it holds twice on a GPU is replaced.
    now_LEG : ndarray
        bool, what every GPU holds now.
    columns : list of Plans
    passed : set of int
        Budgets for which there are columns.
    """

    searcher: Searcher
    effort: Effort
    start: Plans
    now_LEG: Bools
    columns: list[Plans]
    passed: set[int] = field(default_factory=set)

    @property
    def instance(self) -> Instance:
        return self.searcher.instance

    def moved_L(self, plans: Plans) -> Ints:
        """Count the experts per layer that come to a GPU which does not hold them now; int64 [L]."""
        hosts_LEG = hosts_of_slots(plans.slots_LGP, experts=self.instance.experts)
        moved_L: Ints = (hosts_LEG & ~self.now_LEG).sum(axis=(1, 2))
        return moved_L

    def moved(self, plans: Plans) -> int:
        return int(self.moved_L(plans).sum())

    def master(self, most_moved: int) -> BudgetedColumns:
        columns = Columns(
            np.stack([plans.local_L for plans in self.columns]), np.stack([plans.peak_WL for plans in self.columns])
        )
        return BudgetedColumns(columns, np.stack([self.moved_L(plans) for plans in self.columns]), most_moved)

    def search(self, priced: Prices, *, local_weight: float) -> None:
        """Improve the cheapest columns at prices for imbalance and for moves, and keep the result as a column."""
        price_W, price = priced.price_W, priced.price_of_a_move
        cost_CL = np.stack(
            [plans.cost_L(price_W[:, None], local_weight) + price * self.moved_L(plans) for plans in self.columns]
        )
        cheapest = combine(self.columns, cost_CL.argmin(axis=0))
        staying_LEG: Floats = price * self.now_LEG.astype(np.float64)
        instance = replace(self.instance, value_LEM=self.instance.value_LEM * local_weight, staying_LEG=staying_LEG)
        searcher = replace(self.searcher, instance=instance)
        found = searcher.improve(cheapest.slots_LGP, price_W=price_W, local_weight=1.0, effort=self.effort)
        # Its shares hold the worth of what stays: count again without.
        self.columns.append(plans_of(self.instance, found.slots_LGP))

    def walk(self, prices: Prices, *, local_weight: float) -> None:
        """Go from the running layout step by step, one replacement or one swap per layer, and keep every step."""
        plans = self.start
        for _ in range(STEPS):
            steps = [
                self.searcher.improve(plans.slots_LGP, price_W=prices.price_W, local_weight=local_weight, effort=effort)
                for effort in (ONE_REPLACEMENT, ONE_SWAP)
            ]
            changed = [step for step in steps if not np.array_equal(step.slots_LGP, plans.slots_LGP)]
            if not changed or self.searcher.deadline.passed:
                return
            self.columns.extend(changed)
            plans = changed[0]

    def flattest(self, most_moved: int) -> Plans:
        """Mix the columns for a small worst window within the budget."""
        chosen_L = choose_smallest_peak_within(self.master(most_moved), seed=self.searcher.seed, effort=CHOICE_EFFORT)
        return min(self._fitting(chosen_L, most_moved), key=lambda plans: (plans.imbalance, -plans.local))

    def most_local(self, most_moved: int, *, cap: float) -> Plans | None:
        """Mix the columns for most local share under the cap and within the budget; of equal ones move least."""
        cap *= 1 + CAP_SLACK
        chosen_L = choose_under_cap_within(
            self.master(most_moved), cap=cap, seed=self.searcher.seed, effort=CHOICE_EFFORT
        )
        flat = [plans for plans in self._fitting(chosen_L, most_moved) if plans.imbalance <= cap]
        return max(flat, key=lambda plans: (plans.local, -self.moved(plans), -plans.imbalance), default=None)

    def _fitting(self, chosen_L: Ints | None, most_moved: int) -> list[Plans]:
        """Return the plans within the budget: columns as they are, and the mixture."""
        mixed = [] if chosen_L is None else [combine(self.columns, chosen_L)]
        return [plans for plans in [*self.columns, *mixed] if self.moved(plans) <= most_moved]


def move_pool(stages: Stages, problem: Problem, wanted: Outcome) -> MovePool:
    """Start with the running layout and with the plan that moves freely."""
    running_LGP = running_slots(problem)
    now_LEG = hosts_of_slots(running_LGP, experts=problem.demand.experts)
    start = plans_of(stages.instance, without_duplicates(running_LGP, heat_LE=_heat(stages.instance)))
    renamed = with_gpus_renamed(stages.instance, wanted.plans, start.slots_LGP)
    # Prices of moves do the work of trials: what a replacement gains is paid with moves.
    effort = replace(stages.pool.effort, trials=0)
    return MovePool(stages.pool.searcher, effort, start, now_LEG, [start, wanted.plans, renamed])


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
    _add_flatter(pool, most_moved, good_enough=wanted.plans.imbalance)
    _add_steps(pool, prices_of_smallest_peak_within(pool.master(most_moved)), local_weight=TIE_WEIGHT)
    flattest = pool.flattest(most_moved)
    return pool.most_local(most_moved, cap=flattest.imbalance) or flattest


def _most_local(pool: MovePool, wanted: Outcome, most_moved: int) -> Plans:
    """Look for the most local share under the cap, or under the smallest imbalance within the budget."""
    close_enough = wanted.plans.local
    _add_flatter(pool, most_moved, good_enough=wanted.cap * (1 - ROOM))
    _add_more_local(pool, most_moved, cap=wanted.cap, close_enough=close_enough)
    _add_steps(pool, prices_under_cap_within(pool.master(most_moved), cap=wanted.cap), local_weight=1.0)
    plans = pool.most_local(most_moved, cap=wanted.cap)
    if plans is None:
        _add_steps(pool, prices_of_smallest_peak_within(pool.master(most_moved)), local_weight=TIE_WEIGHT)
        # The flatter the columns, the more of them fit.
        _add_flatter(pool, most_moved, good_enough=1.0)
        plans = pool.most_local(most_moved, cap=wanted.cap)
    if plans is None:
        flattest = pool.flattest(most_moved)
        _add_more_local(pool, most_moved, cap=flattest.imbalance, close_enough=close_enough)
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
        _add_flatter(pool, budget, good_enough=good_enough, rounds=ROUNDS_ON_THE_WAY)
        if localises:
            close_enough = wanted.plans.local
            _add_more_local(pool, budget, cap=wanted.cap, close_enough=close_enough, rounds=ROUNDS_ON_THE_WAY)
        pool.passed.add(budget)


def _add_steps(pool: MovePool, prices: Prices | None, *, local_weight: float) -> None:
    """Add columns in small steps where there are few layers: those are mixed coarsely, a budget needs finer ones."""
    if prices is not None and pool.instance.layers <= FEW_LAYERS:
        pool.walk(prices, local_weight=local_weight)


def _add_flatter(pool: MovePool, most_moved: int, *, good_enough: float, rounds: int = ROUNDS) -> None:
    """Add columns for a smaller worst window within the budget."""

    def priced() -> Prices | None:
        found = prices_of_smallest_peak_within(pool.master(most_moved))
        return None if found is None or found.value <= good_enough else found

    _generate(pool, priced, local_weight=TIE_WEIGHT, rounds=rounds)


def _add_more_local(pool: MovePool, most_moved: int, *, cap: float, close_enough: float, rounds: int = ROUNDS) -> None:
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


def _heat(instance: Instance) -> Floats:
    return np.asarray((instance.total_WLE * instance.weight_WL[:, :, None]).sum(axis=0))


def without_duplicates(slots_LGP: Slots, *, heat_LE: Floats) -> Slots:
    """Replace what a GPU holds twice by the hottest experts that it lacks: the fewest moves from such a layout."""
    repaired_LGP = slots_LGP.copy()
    for layer, gpu in np.argwhere((np.diff(np.sort(slots_LGP, axis=2), axis=2) == 0).any(axis=2)).tolist():
        held_P = repaired_LGP[layer, gpu]
        spare = np.setdiff1d(np.arange(len(held_P)), np.unique(held_P, return_index=True)[1])
        lacking = np.setdiff1d(np.arange(heat_LE.shape[1]), held_P)
        held_P[spare] = lacking[np.argsort(-heat_LE[layer, lacking], kind="stable")][: len(spare)]
    return repaired_LGP
