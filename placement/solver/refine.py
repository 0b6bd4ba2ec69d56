"""Small layers exactly: better columns from CP-SAT, and proofs of how good the plan is.

Lagrangian bound (Geoffrion 1974, doi:10.1007/BFb0120690). Layers are tied together only by their windows'
budgets. For any prices mu >= 0,

    local share <= sum_l max_x (local_l(x) - sum_w mu_w peak_wl(x)) + cap sum_w mu_w
    worst window >= sum_l min_x sum_w lambda_w peak_wl(x)            (lambda >= 0, adding up to 1)

whatever the prices are; CP-SAT's own bound on every layer's problem keeps both true where it stops early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import lcm

import numpy as np

from placement.problem import LocalScope
from placement.solver.deadline import Deadline
from placement.solver.instance import Floats, Instance, Ints
from placement.solver.model.exact import Exact, Limits, best_at_prices, most_valuable, smallest_peaks
from placement.solver.model.gpu_contents import number_of_contents
from placement.solver.model.host_sets import sets_of
from placement.solver.model.layer import LayerNumbers
from placement.solver.plans import Plans, plans_of
from placement.solver.starts import hosts_of_slots, slots_of_hosts

MOST_UNITS = 2.0**40
"""Loads and worths are whole numbers of units; more units than this for the whole problem would overflow."""

SAFE_UNITS = 2.0**32
"""Units where tokens cannot be counted exactly: coarser, and then rounded to the safe side."""

PILOTS, PILOT_SECONDS = 4, 0.4
"""So many layers are tried first, for so long; 8 experts on 8 GPUs take about a tenth of that."""

MOST_SET_GPUS = 4
"""Host sets are listed for at most this many GPUs."""

FINEST_PRICE = 2**16
"""Integers that prices are rounded to: any prices give a bound, close ones a good one."""


@dataclass(frozen=True)
class ExactEffort:
    """How long CP-SAT may work on all layers together, in deterministic seconds, and on how many at a time."""

    seconds: float
    threads: int
    seed: int
    deadline: Deadline

    def limits(self, seconds: float) -> Limits:
        return Limits(seconds, self.deadline.left_s, self.seed)


@dataclass(frozen=True, eq=False)
class Refined:
    """Layouts found by CP-SAT, and what it proved.

    Attributes
    ----------
    plans : Plans
    bound : float
        On the local share under the cap (upper), or on the worst window (lower); infinite where unknown.
    """

    plans: Plans
    bound: float


@dataclass(frozen=True, eq=False)
class ExactLayers:
    """The layers of an instance as numbers for the exact models.

    Attributes
    ----------
    numbers_L : sequence of LayerNumbers
    load_units_W : ndarray
        Load units in an imbalance of 1, float64 [W].
    value_units : float
        Worth units in a local share of 1.
    """

    numbers_L: Sequence[LayerNumbers]
    load_units_W: Floats
    value_units: float


def cells_of_a_layer(instance: Instance) -> float:
    """Return the size of a layer's exact model: variables times windows. Infinite where it has no encoding."""
    if instance.even:
        contents = number_of_contents(experts=instance.experts, slots_per_gpu=instance.slots_per_gpu)
        return float((contents + instance.experts * instance.gpus) * instance.windows)
    if instance.gpus > MOST_SET_GPUS:
        return float("inf")
    return float(instance.experts * (2**instance.gpus - 1) * instance.windows)


def exact_layers(instance: Instance) -> ExactLayers:
    """Scale an instance so that the models' coefficients are whole tokens where they fit into 64 bits."""
    gpus = instance.gpus
    parts = lcm(*range(1, gpus + 1)) * (1 if instance.even else gpus)
    load_units_W = instance.tokens_W / gpus * parts
    load_units_W = np.where(load_units_W > MOST_UNITS, SAFE_UNITS, np.maximum(load_units_W, 1.0))
    sites = instance.nodes if instance.scope is LocalScope.NODE else gpus
    value_units = float(instance.tokens_W.sum()) * sites
    value_units = SAFE_UNITS if value_units > MOST_UNITS else value_units
    value_LEM = np.broadcast_to(instance.value_LEM, (*instance.value_LEM.shape[:2], sites)) * value_units
    if instance.scope is LocalScope.NODE and instance.nodes == 1:
        # Everything is local wherever it is.
        value_LEM = np.zeros_like(value_LEM)
    units_WL = instance.weight_WL * load_units_W[:, None]
    return ExactLayers(
        [
            LayerNumbers(
                instance.total_WLE[:, layer] * units_WL[:, layer, None],
                value_LEM[layer],
                None if instance.even else _set_loads(instance, layer) * units_WL[:, layer, None, None, None],
                gpus,
                instance.slots_per_gpu,
            )
            for layer in range(instance.layers)
        ],
        load_units_W,
        value_units,
    )


def local_at_prices(instance: Instance, plans: Plans, *, cap: float, price_W: Floats, effort: ExactEffort) -> Refined:
    """Solve every layer for most local share at prices on its peaks; bound the share under the cap."""
    exact = exact_layers(instance)
    factor = 2 ** int(np.clip(48 - np.log2(exact.value_units), 0, 16))
    per_worth_W = exact.load_units_W / (factor * exact.value_units)
    price_units_W = np.rint(price_W / per_worth_W).astype(np.int64)
    solved = _every_layer(exact, plans, value_factor=factor, price_units_W=price_units_W, effort=effort)
    worth = sum(each.bound for each in solved) / (factor * exact.value_units)
    return Refined(_plans(instance, plans, solved), worth + float((price_units_W * per_worth_W).sum()) * cap)


def peaks_at_prices(instance: Instance, plans: Plans, *, price_W: Floats, effort: ExactEffort) -> Refined:
    """Solve every layer for the smallest priced sum of its peaks; bound the worst window."""
    exact = exact_layers(instance)
    wanted_W = price_W / exact.load_units_W
    finest = 1 if len(price_W) == 1 else FINEST_PRICE
    price_units_W = np.rint(wanted_W / wanted_W.max() * finest).astype(np.int64)
    solved = _every_layer(exact, plans, value_factor=0, price_units_W=price_units_W, effort=effort)
    least = -sum(each.bound for each in solved)
    return Refined(_plans(instance, plans, solved), least / float((price_units_W * exact.load_units_W).sum()))


def local_jointly(instance: Instance, plans: Plans, *, cap: float, effort: ExactEffort) -> Refined:
    """Solve all layers as one model for most local share under the cap."""
    exact = exact_layers(instance)
    cap_W = [int(units * cap * (1 + 1e-12)) for units in exact.load_units_W.tolist()]
    solved = most_valuable(
        exact.numbers_L,
        hosts_of_slots(plans.slots_LGP, experts=instance.experts),
        cap_W=cap_W,
        limits=effort.limits(effort.seconds),
    )
    return Refined(_together(instance, plans, solved), solved.bound / exact.value_units)


def peaks_jointly(instance: Instance, plans: Plans, *, effort: ExactEffort) -> Refined:
    """Solve all layers as one model for the smallest worst window."""
    exact = exact_layers(instance)
    used_W = np.flatnonzero(instance.tokens_W > 0)
    finest = 1 if len(used_W) == 1 else FINEST_PRICE
    factor_W = np.zeros(instance.windows, dtype=np.int64)
    factor_W[used_W] = np.floor(exact.load_units_W[used_W].max() / exact.load_units_W[used_W] * finest)
    hints_LEG = hosts_of_slots(plans.slots_LGP, experts=instance.experts)
    limits = effort.limits(effort.seconds)
    solved = smallest_peaks(exact.numbers_L, hints_LEG, factor_W=factor_W.tolist(), limits=limits)
    bound = -solved.bound / float((factor_W * exact.load_units_W).max())
    return Refined(_together(instance, plans, solved), bound)


def local_with_slack(instance: Instance, plans: Plans, *, slack_W: Floats, effort: ExactEffort) -> Plans:
    """Give every layer most local share with its peaks at most ``slack_W`` above what they are now."""
    exact = exact_layers(instance)
    hints_LEG = hosts_of_slots(plans.slots_LGP, experts=instance.experts)
    limit_WL = (plans.peak_WL + slack_W[:, None]) * exact.load_units_W[:, None] * (1 + 1e-12)

    def solve_layer(layer: int, limits: Limits) -> Exact:
        cap_W = [int(limit) for limit in limit_WL[:, layer].tolist()]
        return most_valuable([exact.numbers_L[layer]], hints_LEG[layer : layer + 1], cap_W=cap_W, limits=limits)

    return _plans(instance, plans, _layer_by_layer(solve_layer, instance.layers, effort))


def _every_layer(
    exact: ExactLayers, plans: Plans, *, value_factor: int, price_units_W: Ints, effort: ExactEffort
) -> list[Exact]:
    """Solve the layers one by one, on as many threads as there are; each is deterministic by itself."""
    hints_LEG = hosts_of_slots(plans.slots_LGP, experts=exact.numbers_L[0].experts)
    # A window that costs nothing has no say in the layer's problem.
    priced_W = np.flatnonzero(price_units_W > 0)

    def solve_layer(layer: int, limits: Limits) -> Exact:
        return best_at_prices(
            exact.numbers_L[layer].of_windows(priced_W),
            hints_LEG[layer],
            value_factor=value_factor,
            price_W=price_units_W[priced_W].tolist(),
            limits=limits,
        )

    return _layer_by_layer(solve_layer, len(exact.numbers_L), effort)


def _layer_by_layer(solve_layer: Callable[[int, Limits], Exact], layers: int, effort: ExactEffort) -> list[Exact]:
    """Solve every layer, on as many threads as there are; each is deterministic by itself.

    Layers that CP-SAT proves get the time that this takes. When the first few are not proven in that time the
    others will not be either: they share what is left.
    """
    pilots = min(PILOTS, layers)
    usual = effort.limits(PILOT_SECONDS)
    with ThreadPoolExecutor(effort.threads) as pool:
        solved = list(pool.map(lambda layer: solve_layer(layer, usual), range(pilots)))
        limits = usual
        if not all(each.proven for each in solved):
            left = max(0.0, effort.seconds - pilots * PILOT_SECONDS)
            limits = effort.limits(min(PILOT_SECONDS, left / max(1, layers - pilots)))
        return solved + list(pool.map(lambda layer: solve_layer(layer, limits), range(pilots, layers)))


def _plans(instance: Instance, plans: Plans, solved: Sequence[Exact]) -> Plans:
    """Turn what was found into plans; layers in which nothing was found keep what they had."""
    hosts_LEG = hosts_of_slots(plans.slots_LGP, experts=instance.experts)
    for layer, each in enumerate(solved):
        if each.hosts_LEG is not None:
            hosts_LEG[layer] = each.hosts_LEG[0]
    return plans_of(instance, slots_of_hosts(hosts_LEG))


def _together(instance: Instance, plans: Plans, solved: Exact) -> Plans:
    return plans if solved.hosts_LEG is None else plans_of(instance, slots_of_hosts(solved.hosts_LEG))


def _set_loads(instance: Instance, layer: int) -> Floats:
    """Return the load of every expert on every GPU under every host set, float64 [W, E, sets, G]."""
    sets_SG = sets_of(instance.gpus)
    experts, sets = instance.experts, len(sets_SG)
    expert_K, set_K = np.divmod(np.arange(experts * sets), sets)
    loads_WKG = instance.loads_of(np.full(len(expert_K), layer), expert_K, sets_SG[set_K])
    return loads_WKG.reshape(instance.windows, experts, sets, instance.gpus)
