"""Columns for the master: start layouts, local search at the master's prices, and the choice at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from placement.solver.batches import Searcher
from placement.solver.goal import CAP_SLACK
from placement.solver.instance import Floats
from placement.solver.local_search import Effort
from placement.solver.model.columns import (
    choose_smallest_peak,
    choose_under_cap,
    prices_of_smallest_peak,
    prices_under_cap,
)
from placement.solver.model.exchanges import Columns
from placement.solver.placing import Slots
from placement.solver.plans import Plans, combine

CHOICE_EFFORT = 0.2
"""Deterministic seconds of CP-SAT for choosing among columns."""

TIE_WEIGHT = 1e-6
"""What local share is worth where only balance is asked for: enough to break ties."""

SLIGHTEST_PRICE, STEEPEST_PRICE = 1e-4, 100.0
"""Local share per unit of imbalance: hardly anything is given up for balance, and everything."""

PRICE_STEP = 30.0
"""Factor between prices while nothing fits under the cap."""


def _unseen(_: Plans) -> None:
    """Show plans to nobody."""


@dataclass(eq=False)
class Pool:
    """The columns found so far; each holds a layout of every layer, and layers mix freely.

    ``see`` is shown every column that is added.
    """

    searcher: Searcher
    effort: Effort
    columns: list[Plans] = field(default_factory=list)
    see: Callable[[Plans], None] = _unseen

    @property
    def windows(self) -> int:
        return self.searcher.instance.windows

    @property
    def out_of_time(self) -> bool:
        return self.searcher.deadline.passed

    def add(self, columns: Iterable[Plans]) -> None:
        """Keep columns."""
        for plans in columns:
            self.columns.append(plans)
            self.see(plans)

    def cheapest(self, *, price_W: Floats, local_weight: float) -> Plans:
        """Take every layer's cheapest column at these prices."""
        cost_CL = np.stack([plans.cost_L(price_W[:, None], local_weight) for plans in self.columns])
        return combine(self.columns, cost_CL.argmin(axis=0))

    def search(self, *, price_W: Floats, local_weight: float) -> None:
        """Improve the cheapest columns at these prices, and keep the result as a column."""
        start = self.cheapest(price_W=price_W, local_weight=local_weight)
        self.search_from(start.slots_LGP, price_W=price_W, local_weight=local_weight)

    def search_from(self, slots_LGP: Slots, *, price_W: Floats, local_weight: float) -> None:
        """Improve the given layouts at these prices, and keep the result as a column."""
        found = self.searcher.improve(slots_LGP, price_W=price_W, local_weight=local_weight, effort=self.effort)
        self.add([found])

    def master(self) -> Columns:
        return Columns(
            np.stack([plans.local_L for plans in self.columns]), np.stack([plans.peak_WL for plans in self.columns])
        )

    def best_balanced(self) -> Plans:
        """Mix the columns for the smallest worst window; of equal ones take the most local."""
        chosen_L = choose_smallest_peak(self.master(), seed=self.searcher.seed, effort=CHOICE_EFFORT)
        mixed = combine(self.columns, chosen_L)
        if self.windows == 1:
            return mixed
        best = min([*self.columns, mixed], key=lambda plans: (plans.imbalance, -plans.local))
        return self.best_under_cap(best.imbalance) or best

    def best_under_cap(self, cap: float) -> Plans | None:
        """Mix the columns for most local share with every window's imbalance at or below the cap."""
        cap *= 1 + CAP_SLACK
        chosen_L = choose_under_cap(self.master(), cap=cap, seed=self.searcher.seed, effort=CHOICE_EFFORT)
        mixed = [] if chosen_L is None else [combine(self.columns, chosen_L)]
        fitting = [plans for plans in [*self.columns, *mixed] if plans.imbalance <= cap]
        return max(fitting, key=lambda plans: (plans.local, -plans.imbalance), default=None)


def equal_prices(windows: int) -> Floats:
    """Return prices that add up to 1."""
    return np.full(windows, 1.0 / windows)


def balance(pool: Pool, *, good_enough: float) -> None:
    """Add columns for the smallest worst window, until it is at most ``good_enough`` or nothing is gained.

    The master's duals say which windows are worst; they are averaged with the prices before, since few columns
    make them jump (Wentges 1997, doi:10.1016/S0969-6016(97)00001-4).
    """
    price_W, last, stalled = equal_prices(pool.windows), np.inf, 0
    for _ in range(pool.effort.rounds):
        worst, dual_W = prices_of_smallest_peak(pool.master())
        stalled = stalled + 1 if worst > last * (1 - pool.effort.stall) else 0
        if pool.out_of_time or worst <= good_enough or stalled == pool.effort.patience:
            return
        last = min(last, worst)
        price_W = (price_W + dual_W) / 2
        pool.search(price_W=price_W, local_weight=TIE_WEIGHT)


def localise(pool: Pool, *, cap: float, close_enough: float) -> None:
    """Add columns for most local share under the cap, until ``close_enough`` or nothing is gained.

    While no mixture of columns fits under the cap all prices go up together; then the master's duals lead.
    """
    price_W = np.full(pool.windows, SLIGHTEST_PRICE)
    while prices_under_cap(pool.master(), cap=cap) is None:
        price_W = price_W * PRICE_STEP
        if pool.out_of_time or price_W[0] > STEEPEST_PRICE:
            return
        pool.search(price_W=price_W, local_weight=1.0)
    last, stalled = -np.inf, 0
    for _ in range(pool.effort.rounds):
        found = prices_under_cap(pool.master(), cap=cap)
        if found is None or pool.out_of_time:
            return
        local, dual_W = found
        stalled = stalled + 1 if local < last * (1 + pool.effort.stall) else 0
        if local >= close_enough or stalled == pool.effort.patience:
            return
        last = max(last, local)
        price_W = (price_W + dual_W) / 2
        pool.search(price_W=price_W, local_weight=1.0)
