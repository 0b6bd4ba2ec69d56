"""Fewest copies per token under the cap on imbalance: columns from several starts and ceilings, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.solver.generation import CHOICE_EFFORT
from placement.solver.goal import CAP_SLACK
from placement.solver.instance import Instance, Ints
from placement.solver.model.columns import choose_under_cap
from placement.solver.model.exchanges import Columns
from placement.solver.model.move_budget import BudgetedColumns, choose_under_cap_within
from placement.solver.overflow_limit import OverflowLimit
from placement.solver.placing import Slots
from placement.solver.plans import Plans, combine
from placement.solver.starts import hosts_of_slots, pack, replicas_by_load, slots_of_hosts
from placement.solver.sticky import WORTH_MOVING, with_gpus_renamed
from placement.solver.traffic.communities import community_hosts
from placement.solver.traffic.descent import Effort
from placement.solver.traffic.small_layers import arrange_small_layers
from placement.solver.traffic.tasks import TrafficSearcher

CEILING_PARTS = (0.5, 2.0)
"""Ceilings that layers are also searched with, as parts of the cap's excess over 1: some layers give, others take."""

ROUGH = Effort(most_tokens=6000)
"""For the first search from every start: tells which start is best in each layer."""

NEAR = Effort(kept_rounds=8)
"""For the search from the running layout: what lies on the way is kept."""

BISECTIONS = 8
"""Numbers of moves tried for a plan that is as good."""


def _unseen(_: Plans) -> None:
    """Show plans to nobody."""


@dataclass(eq=False)
class TrafficPool:
    """Layouts found so far, with their copies; layers mix freely.

    ``cap`` limits every window's imbalance, ``limit`` its overflow where that was asked for.
    """

    searcher: TrafficSearcher
    cap: float
    limit: OverflowLimit | None
    fewest: dict[int, float] = field(default_factory=dict)
    """Proven lower bounds on the copies of small layers' tokens, by place among the MoE layers."""
    columns: list[Plans] = field(default_factory=list)
    see: Callable[[Plans], None] = _unseen
    """Shown every plan that is kept."""

    @property
    def instance(self) -> Instance:
        return self.searcher.instance

    def add(self, slots_LGP: Slots) -> None:
        """Measure layouts and keep them."""
        self._keep(self.searcher.measured(slots_LGP))

    def search(self, slots_LGP: Slots, *, ceiling: float, effort: Effort) -> None:
        """Search from layouts under a ceiling, and keep what is found."""
        if not self.searcher.deadline.passed:
            for plans in self.searcher.columns(slots_LGP, ceiling=ceiling, effort=effort):
                self._keep(plans)

    def _keep(self, plans: Plans) -> None:
        self.columns.append(plans)
        self.see(plans)

    def fewest_copies(self) -> Plans | None:
        """Mix the columns for fewest copies with every window's imbalance at or below the cap."""
        cap = self.cap * (1 + CAP_SLACK)
        rows = self._with_overflow(self._master(), cap=cap)
        chosen_L = choose_under_cap(rows, cap=cap, seed=self.searcher.seed, effort=CHOICE_EFFORT)
        return self._best(chosen_L, self.columns)

    def fewest_copies_within(self, most_moved: int, running_LGP: Slots) -> Plans | None:
        """The same with at most so many slots moving; of equal ones the one that moves least."""
        cap = self.cap * (1 + CAP_SLACK)
        moved_CL = np.stack([self._moved_L(plans, running_LGP) for plans in self.columns])
        budgeted = BudgetedColumns(self._master(), moved_CL, most_moved)
        if self.limit is None:
            chosen_L = choose_under_cap_within(budgeted, cap=cap, seed=self.searcher.seed, effort=CHOICE_EFFORT)
        else:
            rows = self._with_overflow(budgeted.as_window(cap), cap=cap)
            chosen_L = choose_under_cap(rows, cap=cap, seed=self.searcher.seed, effort=CHOICE_EFFORT)
        fitting = [plans for plans, moved_L in zip(self.columns, moved_CL, strict=True) if moved_L.sum() <= most_moved]
        if chosen_L is not None and self.moved(combine(self.columns, chosen_L), running_LGP) > most_moved:
            chosen_L = None
        return self._best(chosen_L, fitting)

    def moved(self, plans: Plans, running_LGP: Slots) -> int:
        return int(self._moved_L(plans, running_LGP).sum())

    def cheapest_slots(self) -> Slots:
        """Take every layer's column with fewest copies among those that keep its ceiling, or else the flattest."""
        weight_L = self.instance.weight_WL.max(axis=0)
        cost_CL = np.stack(
            [
                -plans.local_L
                + weight_L * np.maximum(plans.peak_WL - self.cap * self.instance.weight_WL, 0.0).max(axis=0) * 1e3
                for plans in self.columns
            ]
        )
        return combine(self.columns, cost_CL.argmin(axis=0)).slots_LGP

    def _moved_L(self, plans: Plans, running_LGP: Slots) -> Ints:
        new_LEG = hosts_of_slots(plans.slots_LGP, experts=self.instance.experts)
        now_LEG = hosts_of_slots(running_LGP, experts=self.instance.experts)
        moved_L: Ints = (new_LEG & ~now_LEG).sum(axis=(1, 2))
        return moved_L

    def _master(self) -> Columns:
        return Columns(
            np.stack([plans.local_L for plans in self.columns]), np.stack([plans.peak_WL for plans in self.columns])
        )

    def fits(self, plans: Plans) -> bool:
        """Tell whether all windows keep what is limited."""
        flat = plans.imbalance <= self.cap * (1 + CAP_SLACK)
        return flat and (self.limit is None or self.limit.kept(plans))

    def _with_overflow(self, columns: Columns, *, cap: float) -> Columns:
        return columns if self.limit is None else self.limit.with_rows(columns, self.columns, cap=cap)

    def _best(self, chosen_L: Ints | None, columns: Sequence[Plans]) -> Plans | None:
        mixed = [] if chosen_L is None else [combine(self.columns, chosen_L)]
        fitting = [plans for plans in [*columns, *mixed] if self.fits(plans)]
        return max(fitting, key=lambda plans: (plans.local, -plans.imbalance), default=None)


def fill(pool: TrafficPool, most_local_LGP: Slots, running_LGP: Slots | None, report: Callable[[float], None]) -> None:
    """Search every layer from several starts, then with other ceilings from the best.

    Parameters
    ----------
    most_local_LGP
        The plan for locality under the same cap; it is a column too, so the cap can be kept.
    running_LGP
        What runs, where staying near it matters: layouts on the way from it are kept.
    """
    instance = pool.instance
    spread_LGP = pack(instance, replicas_by_load(instance.total_WLE, gpus=instance.gpus, slots=instance.slots))
    starts = [most_local_LGP, spread_LGP, _by_communities(pool, spread_LGP)]
    if running_LGP is not None:
        pool.add(running_LGP)
        pool.search(running_LGP, ceiling=pool.cap, effort=NEAR)
    pool.add(most_local_LGP)
    pool.add(spread_LGP)
    report(0.3)
    for number, slots_LGP in enumerate(starts, start=1):
        pool.search(slots_LGP, ceiling=pool.cap, effort=ROUGH)
        report(0.3 + 0.15 * number)
    pool.search(pool.cheapest_slots(), ceiling=pool.cap, effort=Effort())
    small = arrange_small_layers(pool.searcher, pool.cheapest_slots(), ceiling=pool.cap)
    if small.fewest:
        pool.fewest.update(small.fewest)
        pool.add(small.slots_LGP)
    if pool.limit is not None and pool.limit.factor < pool.cap:
        pool.search(pool.cheapest_slots(), ceiling=pool.limit.factor, effort=Effort())
    for part in CEILING_PARTS:
        pool.search(pool.cheapest_slots(), ceiling=1 + part * (pool.cap - 1), effort=Effort())
        report(min(0.95, 0.75 + 0.1 * part))


def _by_communities(pool: TrafficPool, slots_LGP: Slots) -> Slots:
    hosts_LEG = hosts_of_slots(slots_LGP, experts=pool.instance.experts)
    arranged = [
        community_hosts(tokens, pool.instance.take(np.array([layer])), hosts_LEG[layer], seed=pool.searcher.seed)
        for layer, tokens in enumerate(pool.searcher.layers)
    ]
    return slots_of_hosts(np.stack(arranged))


def nearest_as_good(pool: TrafficPool, best: Plans, running_LGP: Slots) -> Plans:
    """Return the plan with as few copies, up to ``WORTH_MOVING``, that moves least; what runs where it is as good."""
    renamed = [with_gpus_renamed(pool.instance, plans, running_LGP).slots_LGP for plans in (best, *pool.columns[-3:])]
    for slots_LGP in renamed:
        pool.add(slots_LGP)
    enough = best.local - WORTH_MOVING * abs(best.local)
    nearest = min(
        (plans for plans in (best, *pool.columns) if _good(plans, enough, pool)),
        key=lambda plans: pool.moved(plans, running_LGP),
    )
    too_few = -1
    for _ in range(BISECTIONS):
        budget = (too_few + pool.moved(nearest, running_LGP)) // 2
        if budget <= too_few or pool.searcher.deadline.passed:
            break
        found = pool.fewest_copies_within(budget, running_LGP)
        if found is not None and _good(found, enough, pool):
            nearest = found
        else:
            too_few = budget
    return nearest


def _good(plans: Plans, enough: float, pool: TrafficPool) -> bool:
    return plans.local >= enough and pool.fits(plans)
