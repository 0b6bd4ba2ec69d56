"""CP-SAT on what the local search left open: when, for how long, and what it proves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placement.solver.generation import Pool
from placement.solver.instance import Instance
from placement.solver.model.columns import prices_of_smallest_peak, prices_under_cap
from placement.solver.proofs import Proofs
from placement.solver.refine import (
    ExactEffort,
    cells_of_a_layer,
    local_at_prices,
    local_jointly,
    local_with_slack,
    peaks_at_prices,
    peaks_jointly,
)

MOST_CELLS = 2500
"""Layers whose exact model has more variables x windows are left to the local search."""

JOINT_CELLS = 600
"""Problems with at most this many variables x windows in all layers are solved as one model."""

ROUNDS = 2
"""Times that every layer is solved, at the master's prices of the moment."""

CLOSED = 2e-4
"""Relative gap at which nothing is left to do."""

ROUNDING = 1e-9
"""Bounds are weakened by this part: more than float64 loses in their sums."""

TOGETHER = "CP-SAT, all layers in one model{under}"
BY_LAYER = "Lagrangian dual of the windows' budgets, every layer solved by CP-SAT{under}"
UNDER_CAP = ", imbalance <= {cap:.6g} in every window"


def _untold(_: Proofs) -> None:
    """Tell nobody what is proven."""


@dataclass(frozen=True, eq=False)
class ExactStage:
    """Exact models of small layers; does nothing where layers are large.

    Attributes
    ----------
    instance : Instance
    effort : ExactEffort
        For the whole problem; shared out over layers and rounds.
    prove : callable
        Told what is proven after every round.
    """

    instance: Instance
    effort: ExactEffort
    prove: Callable[[Proofs], None] = _untold

    @property
    def applies(self) -> bool:
        small = cells_of_a_layer(self.instance) <= MOST_CELLS
        return small and self.effort.seconds > 0 and not self.effort.deadline.passed

    @property
    def _joint(self) -> bool:
        return cells_of_a_layer(self.instance) * self.instance.layers <= JOINT_CELLS

    def _per_round(self, rounds: int) -> ExactEffort:
        return replace(self.effort, seconds=self.effort.seconds / rounds)

    def balance(self, pool: Pool, proofs: Proofs) -> Proofs:
        """Add columns for a smaller worst window, and bound it from below."""
        if not self.applies:
            return proofs
        if self._joint:
            refined = peaks_jointly(self.instance, pool.best_balanced(), effort=self.effort)
            pool.add([refined.plans])
            return proofs.with_imbalance(refined.bound * (1 - ROUNDING), TOGETHER.format(under=""))
        # With one window its price is 1 in every round.
        rounds = min(ROUNDS, self.instance.windows)
        for _ in range(rounds):
            worst, price_W = prices_of_smallest_peak(pool.master())
            if worst <= proofs.imbalance * (1 + CLOSED) or self.effort.deadline.passed:
                break
            start = pool.cheapest(price_W=price_W, local_weight=0.0)
            refined = peaks_at_prices(self.instance, start, price_W=price_W, effort=self._per_round(rounds))
            pool.add([refined.plans])
            proofs = proofs.with_imbalance(refined.bound * (1 - ROUNDING), BY_LAYER.format(under=""))
            self.prove(proofs)
        return proofs

    def localise(self, pool: Pool, proofs: Proofs, *, cap: float) -> Proofs:
        """Add columns for more local share under the cap, and bound it from above."""
        if not self.applies:
            return proofs
        under = UNDER_CAP.format(cap=cap)
        if self._joint:
            start = pool.best_under_cap(cap) or pool.best_balanced()
            refined = local_jointly(self.instance, start, cap=cap, effort=self.effort)
            pool.add([refined.plans])
            return proofs.with_local(refined.bound * (1 + ROUNDING), TOGETHER.format(under=under))
        for _ in range(ROUNDS):
            found = prices_under_cap(pool.master(), cap=cap)
            if found is None or found[0] >= proofs.local * (1 - CLOSED) or self.effort.deadline.passed:
                break
            start = pool.cheapest(price_W=found[1], local_weight=1.0)
            refined = local_at_prices(self.instance, start, cap=cap, price_W=found[1], effort=self._per_round(ROUNDS))
            pool.add([refined.plans])
            proofs = proofs.with_local(refined.bound * (1 + ROUNDING), BY_LAYER.format(under=under))
            self.prove(proofs)
        self._spend_slack(pool, proofs, cap=cap)
        return proofs

    def _spend_slack(self, pool: Pool, proofs: Proofs, *, cap: float) -> None:
        """Let every layer alone use what the chosen plan leaves of the cap; the choice takes what fits together."""
        best = pool.best_under_cap(cap)
        if best is None or best.local >= proofs.local * (1 - CLOSED) or self.effort.deadline.passed:
            return
        slack_W = np.maximum(0.0, cap - best.peak_WL.sum(axis=1))
        pool.add([local_with_slack(self.instance, best, slack_W=slack_W, effort=self._per_round(ROUNDS))])
