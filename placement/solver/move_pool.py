"""Columns with what each moves from the running layout, and the search for more at a price on moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from placement.solver.batches import Searcher
from placement.solver.generation import CHOICE_EFFORT
from placement.solver.goal import CAP_SLACK
from placement.solver.instance import Bools, Floats, Instance, Ints
from placement.solver.local_search import Effort
from placement.solver.model.exchanges import Columns
from placement.solver.model.move_budget import (
    BudgetedColumns,
    Prices,
    choose_smallest_peak_within,
    choose_under_cap_within,
)
from placement.solver.placing import Slots
from placement.solver.plans import Plans, combine, plans_of
from placement.solver.stages import Outcome, Stages
from placement.solver.starts import hosts_of_slots
from placement.solver.sticky import with_gpus_renamed

STEPS = 16
"""Steps of one replacement or swap per layer that are kept as columns."""

ONE_REPLACEMENT = Effort(doublings=(6,), tours=0, hot_steps=0, replacements=1)
ONE_SWAP = Effort(doublings=(6,), tours=0, hot_steps=1, replacements=0)


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
    renamed : Plans
        The plan that moves freely, its GPUs renamed so that least moves.
    columns : list of Plans
    passed : set of int
        Budgets for which there are columns.
    """

    searcher: Searcher
    effort: Effort
    start: Plans
    now_LEG: Bools
    renamed: Plans
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

    def search(self, prices: Prices, *, local_weight: float) -> None:
        """Improve the cheapest columns at prices for imbalance and for moves, and keep the result as a column."""
        price_W, price = prices.price_W, prices.price_of_a_move
        cost_CL = np.stack(
            [plans.cost_L(price_W[:, None], local_weight) + price * self.moved_L(plans) for plans in self.columns]
        )
        self.search_from(combine(self.columns, cost_CL.argmin(axis=0)), prices, local_weight=local_weight)

    def search_from(self, plans: Plans, prices: Prices, *, local_weight: float) -> None:
        """Improve a plan at prices for imbalance and for moves, and keep the result as a column."""
        price_W, price = prices.price_W, prices.price_of_a_move
        staying_LEG: Floats = price * self.now_LEG.astype(np.float64)
        instance = replace(self.instance, value_LEM=self.instance.value_LEM * local_weight, staying_LEG=staying_LEG)
        searcher = replace(self.searcher, instance=instance)
        found = searcher.improve(plans.slots_LGP, price_W=price_W, local_weight=1.0, effort=self.effort)
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


def move_pool(stages: Stages, running_LGP: Slots, wanted: Outcome) -> MovePool:
    """Start with the running layout and with the plan that moves freely."""
    now_LEG = hosts_of_slots(running_LGP, experts=stages.instance.experts)
    start = plans_of(stages.instance, without_duplicates(running_LGP, heat_LE=_heat(stages.instance)))
    renamed = with_gpus_renamed(stages.instance, wanted.plans, start.slots_LGP)
    # Prices of moves do the work of trials: what a replacement gains is paid with moves.
    effort = replace(stages.pool.effort, trials=0)
    return MovePool(stages.pool.searcher, effort, start, now_LEG, renamed, [start, wanted.plans, renamed])


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
