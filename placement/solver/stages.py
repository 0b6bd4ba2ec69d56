"""What is done for each objective, in order: start layouts, search, exact models, choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placement.problem import LocalScope, Objective
from placement.solver.course import Course
from placement.solver.exact_stage import ExactStage
from placement.solver.generation import (
    SLIGHTEST_PRICE,
    TIE_WEIGHT,
    Pool,
    balance,
    equal_prices,
    localise,
)
from placement.solver.goal import CAP_SLACK
from placement.solver.instance import Bools, Floats, Instance
from placement.solver.model.columns import prices_of_smallest_peak
from placement.solver.plans import Plans, plans_of
from placement.solver.proofs import Proofs
from placement.solver.starts import pack, replica_family, replicas_by_load, slots_of_hosts

GOOD_ENOUGH = 5e-4
"""Balance within this part of the bound, or of perfect balance, is not searched further."""

CLOSE_ENOUGH = 1e-4
"""Local share within this part of the bound is not searched further."""

FAMILY = 8
"""Start layouts between "hottest experts everywhere" and "no replica heavier than necessary"."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The plan of the MoE layers, the cap it was made for, and what is proven.

    Attributes
    ----------
    plans : Plans
    cap : float
        For locality: the cap asked for, or the smallest imbalance found where that was out of reach.
    proofs : Proofs
    """

    plans: Plans
    cap: float
    proofs: Proofs


@dataclass(frozen=True, eq=False)
class Stages:
    """One run over an instance."""

    instance: Instance
    moe_layers: tuple[int, ...]
    pool: Pool
    exact: ExactStage
    proofs: Proofs
    progress: Callable[[float], None]
    course: Course

    def run(self, objective: Objective, *, cap: float) -> Outcome:
        """Plan for an objective; where nothing is local, for balance."""
        if self.proofs.locality is None or not self.localises(objective):
            return self.balance(cap)
        return self.localise(cap, self.proofs.locality.hosts_LEG[list(self.moe_layers)])

    def localises(self, objective: Objective) -> bool:
        return objective is Objective.LOCALITY and self.proofs.locality is not None

    def balance(self, cap: float, *, good_enough: float | None = None) -> Outcome:
        """Minimise the worst window, down to ``good_enough`` or close to the bound; the cap is only passed on."""
        self._search_balanced(good_enough=good_enough or self._even_enough)
        proofs = self.proofs
        best = self.pool.best_balanced()
        self.course.see(best)
        if best.imbalance > proofs.imbalance * (1 + CLOSE_ENOUGH):
            proofs = self.exact.balance(self.pool, proofs)
            self.course.prove(proofs)
        return Outcome(self.pool.best_balanced(), cap, proofs)

    @property
    def _even_enough(self) -> float:
        return self.proofs.imbalance * (1 + GOOD_ENOUGH)

    def _search_balanced(self, *, good_enough: float) -> None:
        """Search for the smallest worst window; where there is time, again with other start layouts as columns."""
        self._start_balanced()
        self.progress(0.3)
        balance(self.pool, good_enough=good_enough)
        for _ in range(self.pool.effort.restarts):
            if self.pool.out_of_time or prices_of_smallest_peak(self.pool.master())[0] <= good_enough:
                break
            self._add_family()
            balance(self.pool, good_enough=good_enough)
        self.progress(0.7)

    def localise(self, cap: float, most_local_LEG: Bools) -> Outcome:
        """Maximise the local share under the cap, or under the smallest imbalance found if that is higher."""
        self._start_local(most_local_LEG)
        self.progress(0.1)
        localise(self.pool, cap=cap, close_enough=self.proofs.local * (1 - CLOSE_ENOUGH))
        self.progress(0.6)
        if self.pool.best_under_cap(cap) is None:
            return self._localise_beyond(cap)
        return self._close_gap(cap, self.proofs)

    def _localise_beyond(self, cap: float) -> Outcome:
        """Find the smallest imbalance there is, then the most local share at that.

        The first search is that of :meth:`balance` and knows no other columns, so that balance is never worse than
        what is found here.
        """
        alone = Pool(self.pool.searcher, self.pool.effort, see=self.course.see)
        flattest = replace(self, pool=alone, progress=_unreported)
        found = flattest.balance(cap, good_enough=min(cap, self._even_enough))
        # The plan itself too: what mixes its columns anew is not sure to find it among so many.
        self.pool.add([*flattest.pool.columns, found.plans])
        smallest = found.plans.imbalance
        cap = smallest if smallest > cap * (1 + CAP_SLACK) else cap
        self.course.loosen(cap, self.pool.columns)
        localise(self.pool, cap=cap, close_enough=self.proofs.local * (1 - CLOSE_ENOUGH))
        return self._close_gap(cap, found.proofs)

    def _close_gap(self, cap: float, proofs: Proofs) -> Outcome:
        plans = self.pool.best_under_cap(cap) or self.pool.best_balanced()
        self.course.see(plans)
        if plans.local < proofs.local * (1 - CLOSE_ENOUGH):
            proofs = self.exact.localise(self.pool, proofs, cap=cap)
            self.course.prove(proofs)
            plans = self.pool.best_under_cap(cap) or plans
        return Outcome(plans, cap, proofs)

    def _start_balanced(self) -> None:
        """Replica counts by load, under two views of several windows: their sum, and the worst of them."""
        starts = [self._packed(view_WLE) for view_WLE in self._views()]
        self.pool.add(starts)
        for plans in starts:
            if not self.pool.out_of_time:
                self.pool.search_from(
                    plans.slots_LGP, price_W=equal_prices(self.instance.windows), local_weight=TIE_WEIGHT
                )

    def _start_local(self, most_local_LEG: Bools) -> None:
        """Most local hosts, then layouts between those and balance, then swaps that cost hardly any locality."""
        instance = self.instance
        self.pool.add([plans_of(instance, slots_of_hosts(most_local_LEG)), self._packed(self._views()[-1])])
        if instance.value_LEM.shape[2] == 1 and instance.scope is LocalScope.GPU:
            # Only the numbers of replicas matter for locality, so every packing of them is a start.
            self._add_family()
        if not self.pool.out_of_time:
            self.pool.search(price_W=np.full(instance.windows, SLIGHTEST_PRICE), local_weight=1.0)

    def _add_family(self) -> None:
        for replicas_LE in replica_family(self.instance, members=FAMILY):
            if self.pool.out_of_time:
                return
            self.pool.add([plans_of(self.instance, pack(self.instance, replicas_LE))])

    def _packed(self, view_WLE: Floats) -> Plans:
        instance = self.instance
        replicas_LE = replicas_by_load(view_WLE, gpus=instance.gpus, slots=instance.slots)
        return plans_of(instance, pack(instance, replicas_LE))

    def _views(self) -> list[Floats]:
        """Return loads as replica counts should see them: windows added up, and the worst window of each expert."""
        if self.instance.windows == 1:
            return [self.instance.total_WLE]
        merged_WLE = (self.instance.total_WLE * self.instance.weight_WL[:, :, None]).sum(axis=0, keepdims=True)
        return [merged_WLE, self.instance.total_WLE]


def _unreported(_: float) -> None:
    """Report to nobody: a search inside another one."""
