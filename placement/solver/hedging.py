"""Replica counts that hold on other traffic: a little local share for GPUs that stay even when experts' loads shift.

Let the load of expert e differ from what was planned for by a random part with variance v_e. Each of its n_e replicas
carries 1/n_e of that part, so the variances of all GPUs' loads about their mean add up to

    V = sum_e v_e (1 / n_e - 1 / G).

This depends on replica counts only. Filling the hottest experts to all GPUs, which is best for the local share, leaves
most experts with one replica and V large; V is smallest with counts proportional to sqrt(v_e) (Neyman 1934,
doi:10.1111/j.2397-2335.1934.tb04184.x, on samples of strata). The largest of G loads that vary by V / G each is
expected sqrt(2 ln G V / G) above the mean, so

    exposure = mean over windows of the imbalance + sum over layers of weight x sqrt(2 ln G V / G)

estimates the imbalance on other traffic. Hedging looks for the least exposed plan that keeps the cap and a given part
of the local share: a master over columns with one more row, whose dual is what local share is worth.

The v_e are measured between the windows. Few windows say little about one expert, and one that was cold in all of
them may be hot in the next: every expert's variance is drawn towards its layer's mean, as if ``PRIOR_WINDOWS`` further
windows had shown that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placement.solver.generation import CHOICE_EFFORT, Pool
from placement.solver.goal import CAP_SLACK
from placement.solver.instance import Floats, Instance
from placement.solver.model.columns import choose_under_cap, prices_under_cap
from placement.solver.model.exchanges import Columns
from placement.solver.plans import Plans, combine, plans_of
from placement.solver.stages import Outcome, Stages
from placement.solver.starts import hosts_of_slots

PRIOR_WINDOWS = 2
"""Windows that a layer's mean variance counts for beside the measured ones."""

ROUNDS = 4
"""Columns looked for at the master's prices."""

STALL = 1e-3
"""Relative progress below which no more columns are looked for."""

ROUNDING = 1e-12
"""Variances below this part of a mean expert's squared load are rounding."""

LEAST_VARIANCE = 1e-12
"""Below this a layer does not vary: every expert is on every GPU."""


def hedge(stages: Stages, outcome: Outcome, *, part: float, least_local: float) -> Outcome:
    """Return the least exposed plan found that gives up at most ``part`` of the local share.

    Parameters
    ----------
    part
        Of the plan's local share, 0..1.
    least_local
        Share that is kept where the plan has it.
    """
    plans = outcome.plans
    least = max((1 - part) * plans.local, min(least_local, plans.local))
    if least >= plans.local or stages.pool.out_of_time:
        return outcome
    master = _Master(stages.instance, variance_of(stages.instance), plans, least, max(outcome.cap, plans.imbalance))
    columns = [*stages.pool.columns, plans]
    _generate(stages.pool, master, columns)
    return replace(outcome, plans=master.choose(columns, seed=stages.pool.searcher.seed))


def variance_of(instance: Instance) -> Floats:
    """Estimate the variance of every expert's load between windows, in squares of a mean GPU load; float64 [L, E]."""
    busy_WL = instance.weight_WL > 0
    windows_L1 = busy_WL.sum(axis=0)[:, None]
    mean_LE = instance.total_WLE.sum(axis=0) / windows_L1
    square_LE = (np.square(instance.total_WLE - mean_LE) * busy_WL[:, :, None]).sum(axis=0)
    seen_L1 = windows_L1 - 1
    usual_L1 = (square_LE / np.maximum(seen_L1, 1)).mean(axis=1, keepdims=True)
    # One window, or windows all alike, say nothing: then every expert is taken to vary by a mean expert's load.
    mean_square_L1 = np.square(mean_LE.mean(axis=1, keepdims=True))
    alike_L1 = usual_L1 <= ROUNDING * mean_square_L1
    usual_L1 = np.where(alike_L1, mean_square_L1, usual_L1)
    square_LE = np.where(alike_L1, seen_L1 * mean_square_L1, square_LE)
    variance_LE: Floats = (square_LE + PRIOR_WINDOWS * usual_L1) / (seen_L1 + PRIOR_WINDOWS)
    return variance_LE


@dataclass(frozen=True, eq=False)
class _Master:
    """Columns for the least exposure, within the cap and a budget of local share.

    Attributes
    ----------
    instance : Instance
    variance_LE : ndarray
    best : Plans
        The plan that gives nothing up.
    least : float
        Local share that is kept.
    cap : float
    """

    instance: Instance
    variance_LE: Floats
    best: Plans
    least: float
    cap: float

    @property
    def mean_W(self) -> Floats:
        """Weights of a mean over the windows that have demand."""
        busy_W = self.instance.tokens_W > 0
        mean_W: Floats = busy_W / np.count_nonzero(busy_W)
        return mean_W

    @property
    def _cap_per_local(self) -> float:
        """The budget of local share is used up where its row reaches the cap, as the windows' rows do."""
        return self.cap / (self.best.local - self.least)

    def _deviation_L(self, plans: Plans) -> Floats:
        """Return sqrt(V) of every layer."""
        replicas_LE = hosts_of_slots(plans.slots_LGP, experts=self.instance.experts).sum(axis=2)
        varies_L = (self.variance_LE * (1 / replicas_LE - 1 / self.instance.gpus)).sum(axis=1)
        deviation_L: Floats = np.sqrt(np.maximum(varies_L, LEAST_VARIANCE))
        return deviation_L

    def _per_deviation_L(self) -> Floats:
        gpus = self.instance.gpus
        return np.asarray(self.mean_W @ self.instance.weight_WL * np.sqrt(2 * np.log(gpus) / gpus))

    def exposure_L(self, plans: Plans) -> Floats:
        """Return what every layer adds to the imbalance expected on other traffic; float64 [L]."""
        exposure_L: Floats = self.mean_W @ plans.peak_WL + self._per_deviation_L() * self._deviation_L(plans)
        return exposure_L

    def variation_LE(self, plans: Plans) -> Floats:
        """Return what 1 / n_e of every expert is worth in exposure at a plan's replica counts."""
        slope_L = self._per_deviation_L() / (2 * self._deviation_L(plans))
        return np.asarray(self.variance_LE * slope_L[:, None])

    def rows(self, columns: list[Plans]) -> Columns:
        used_CL = (self.best.local_L - np.stack([plans.local_L for plans in columns])) * self._cap_per_local
        peak_CWL = np.stack([plans.peak_WL for plans in columns])
        worth_CL = -np.stack([self.exposure_L(plans) for plans in columns])
        return Columns(worth_CL, np.concatenate([peak_CWL, used_CL[:, None]], axis=1))

    def prices(self, columns: list[Plans]) -> tuple[float, Floats, float] | None:
        """Return the least exposure of mixtures, and what imbalance and local share are worth in it."""
        found = prices_under_cap(self.rows(columns), cap=self.cap * (1 + CAP_SLACK))
        return None if found is None else (-found[0], found[1][:-1], float(found[1][-1]) * self._cap_per_local)

    def choose(self, columns: list[Plans], *, seed: int) -> Plans:
        """Return the least exposed plan that keeps cap and share: a column or a mixture, or the best plan itself."""
        cap, least = self.cap * (1 + CAP_SLACK), self.least * (1 - CAP_SLACK)
        chosen_L = choose_under_cap(self.rows(columns), cap=cap, seed=seed, effort=CHOICE_EFFORT)
        mixed = [] if chosen_L is None else [combine(columns, chosen_L)]
        fitting = [plans for plans in [*columns, *mixed] if plans.imbalance <= cap and plans.local >= least]
        return min([*fitting, self.best], key=lambda plans: (float(self.exposure_L(plans).sum()), -plans.local))


def _generate(pool: Pool, master: _Master, columns: list[Plans]) -> None:
    """Add columns at the prices of imbalance and of local share, while that lowers the exposure."""
    last = np.inf
    for _ in range(ROUNDS):
        found = master.prices(columns)
        if found is None or pool.out_of_time or found[0] > last * (1 - STALL):
            return
        last, price_W, worth_of_local = found
        cost_CL = np.stack(
            [
                master.exposure_L(plans) + plans.cost_L(price_W[:, None], local_weight=worth_of_local)
                for plans in columns
            ]
        )
        start = combine(columns, cost_CL.argmin(axis=0))
        hedged = replace(
            master.instance,
            value_LEM=master.instance.value_LEM * worth_of_local,
            variation_LE=master.variation_LE(start),
        )
        found_plans = replace(pool.searcher, instance=hedged).improve(
            start.slots_LGP,
            price_W=price_W + master.mean_W,
            local_weight=1.0,
            # What a trial gains is less than what the variances are known to.
            effort=replace(pool.effort, trials=0),
        )
        columns.append(plans_of(master.instance, found_plans.slots_LGP))
