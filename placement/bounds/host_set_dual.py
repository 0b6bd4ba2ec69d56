"""The linear relaxation over host sets, bounded by prices.

Every expert of a layer takes one host set (a column), fractions allowed; a column brings local tokens, takes one
slot on each of its GPUs and puts load on them as dispatch says. All windows and layers are in it at once:

    max  sum value[l, e, h] x[l, e, h]
    s.t. sum_h x[l, e, h] = 1                            every expert has one host set
         sum_{e, h with g} x[l, e, h] = S                every GPU has S experts               price slot[l, g]
         sum_{e, h} load[w, l, e, h, g] x <= t[w, l]     no GPU is above the peak              price y[w, l, g] >= 0
         sum_l weight[w, l] t[w, l] <= cap               no window is above the cap            price p[w] >= 0

Lagrange. Put the last three rows into the objective with their prices. If ``sum_g y[w, l, g] = p[w] weight[w, l]``
then t drops out, and what is left is the best column of every expert for itself:

    dual = sum_w cap p[w] + sum_{l, g} S slot[l, g]
         + sum_{l, e} max_h ( value[l, e, h] - sum_{g in h} slot[l, g] - sum_{w, g} y[w, l, g] load[w, l, e, h, g] )

Every layout that keeps the cap in all windows satisfies the rows and is one of the things maximised over, so its
value is at most ``dual`` whatever the prices are (weak duality): a bound is proven as soon as the maximum over
*all* host sets is taken, however rough the prices. With value 0 and prices p that add up to 1, ``cap sum p - dual``
is a lower bound on the worst window's imbalance in the same way. (Dantzig and Wolfe 1960, doi:10.1287/opre.8.1.101;
Geoffrion 1974, doi:10.1007/BFb0120690.)

Good prices come from gradient descent on the dual, its maximum smoothed to ``T log sum exp (. / T)`` (Nesterov 2005,
doi:10.1007/s10107-004-0552-5) with T falling, in Adam's steps (Kingma and Ba 2014, arXiv:1412.6980). Smoothing only
steers: the bound is the true dual.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.host_sets import HostSets

Floats = npt.NDArray[np.float64]

STEP, LAST_STEP, STEADY_PART = 0.1, 0.005, 0.3
"""Adam's step: constant for the first part of the rounds, then falling geometrically to the last one."""

SMOOTHING, LAST_SMOOTHING = 0.3, 0.003
"""Smoothing of the maximum, in units of a typical slot price, falling geometrically."""

MOMENTUM, SPREAD_MEMORY, TINY = 0.9, 0.9, 1e-12


@dataclass(frozen=True, eq=False)
class Columns:
    """What the relaxation needs of a problem.

    Attributes
    ----------
    sets : HostSets
    value_LEH : ndarray
        float64, share of all demand that is local when expert e is on set h; all 0 where only balance counts.
    demand_WLES : ndarray
        float64, tokens over the mean GPU load of their window and layer.
    weight_WL : ndarray
        float64, a layer's part of its window's mean load; windows without demand are left out.
    slots_per_gpu : int
    """

    sets: HostSets
    value_LEH: Floats
    demand_WLES: Floats
    weight_WL: Floats
    slots_per_gpu: int


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The best prices found.

    Attributes
    ----------
    dual_L : ndarray
        float64 [L], every layer's part of the dual, without ``cap p``.
    window_price_W : ndarray
        float64 [W], p.
    hosting_LEG : ndarray
        float64 [L, E, G] in 0..1: how much of each expert the smoothed relaxation puts on each GPU. No bound, but a
        start for rounding.
    """

    dual_L: Floats
    window_price_W: Floats
    hosting_LEG: Floats

    def total(self, cap: float) -> float:
        return float(self.dual_L.sum() + cap * self.window_price_W.sum())


def descend(columns: Columns, *, cap: float | None, rounds: int) -> DualPoint:
    """Look for prices with a small dual; the best point of all rounds.

    Parameters
    ----------
    columns
    cap
        Limit on every window's imbalance, prices of windows are free; None for balance alone, where they add up
        to 1.
    rounds
        Steps; cost is rounds x layers x experts x host sets x (windows + a few).
    """
    windows, layers, _, gpus = columns.demand_WLES.shape
    slot_unit_L, slot_start_LG = _slot_prices(columns)
    variables = [slot_start_LG / slot_unit_L[:, None], np.zeros((windows, layers, gpus)), np.zeros(windows)]
    variables[2] -= np.log(windows)
    steps = _Adam(variables)
    best: DualPoint | None = None
    for round_ in range(rounds):
        slot_LG, split_WLG, window_W = _prices(variables, slot_unit_L, balance=cap is None)
        load_price_WLG = window_W[:, None, None] * columns.weight_WL[:, :, None] * split_WLG
        smoothing_L = slot_unit_L * SMOOTHING * (LAST_SMOOTHING / SMOOTHING) ** (round_ / rounds)
        dual_L, hosting_LEG, load_WLG = _evaluate(columns, slot_LG, load_price_WLG, smoothing_L)
        point = DualPoint(dual_L, window_W, hosting_LEG)
        if best is None or point.total(cap or 0.0) < best.total(cap or 0.0):
            best = point
        slope_W = (cap or 0.0) - (columns.weight_WL[:, :, None] * split_WLG * load_WLG).sum(axis=(1, 2))
        centred_W = slope_W - (window_W * slope_W).sum() if cap is None else slope_W
        mean_load_WL1 = (load_WLG * split_WLG).sum(axis=2, keepdims=True)
        falling = max(0.0, round_ / rounds - STEADY_PART) / (1 - STEADY_PART)
        steps.take(
            [
                (columns.slots_per_gpu - hosting_LEG.sum(axis=1)) * slot_unit_L[:, None],
                load_price_WLG * (mean_load_WL1 - load_WLG),
                window_W * centred_W,
            ],
            size=STEP * (LAST_STEP / STEP) ** falling,
        )
    if best is None:
        raise ValueError(f"rounds is {rounds}; at least one is needed for a bound.")
    return best


def _slot_prices(columns: Columns) -> tuple[Floats, Floats]:
    """Return the size of a typical slot price by layer [L], and prices to start from [L, G]."""
    layers = columns.weight_WL.shape[1]
    alone_HG = columns.sets.hosts_HG[columns.sets.hosts_HG.sum(axis=1) == 1]
    gpus = len(alone_HG)
    # The values of single hosts: set 2^g is GPU g alone. A slot is worth what the S-th best expert brings to it.
    single_LEG = columns.value_LEH[:, :, 2 ** np.arange(gpus) - 1]
    start_LG = np.sort(single_LEG, axis=1)[:, -columns.slots_per_gpu]
    balance_unit_L = columns.weight_WL.mean(axis=0) / (gpus * columns.slots_per_gpu)
    unit_L = start_LG.mean(axis=1)
    has_value = bool(columns.value_LEH.any())
    unit_L = np.where(unit_L > 0, unit_L, single_LEG.mean(axis=(1, 2)) if has_value else balance_unit_L)
    return np.where(unit_L > 0, unit_L, 1.0 / layers), start_LG


def _prices(variables: list[Floats], slot_unit_L: Floats, *, balance: bool) -> tuple[Floats, Floats, Floats]:
    slots, split, window = variables
    split_WLG = np.exp(split - split.max(axis=2, keepdims=True))
    split_WLG /= split_WLG.sum(axis=2, keepdims=True)
    window_W = np.exp(window - window.max()) if balance else np.exp(window)
    return slots * slot_unit_L[:, None], split_WLG, window_W / window_W.sum() if balance else window_W


def _evaluate(
    columns: Columns, slot_LG: Floats, load_price_WLG: Floats, smoothing_L: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the true dual by layer [L], and hosting [L, E, G] and loads [W, L, G] of the smoothed one."""
    sets = columns.sets
    windows, layers, experts, gpus = columns.demand_WLES.shape
    dual_L, hosting_LEG, load_WLG = np.empty(layers), np.empty((layers, experts, gpus)), np.empty_like(load_price_WLG)
    for layer in range(layers):
        demand_WES = columns.demand_WLES[:, layer]
        # Step 1: what every column is worth at these prices. [E, H]
        worth_EH = columns.value_LEH[layer] - sets.hosts_HG @ slot_LG[layer]
        charge_WHS = np.einsum("hsg,wg->whs", sets.share_HSG, load_price_WLG[:, layer], optimize=True)
        for window in range(windows):
            worth_EH -= demand_WES[window] @ charge_WHS[window].T
        # Step 2: the best column of every expert. [E]
        best_E = worth_EH.max(axis=1)
        dual_L[layer] = columns.slots_per_gpu * slot_LG[layer].sum() + best_E.sum()
        # Step 3: nearly best ones share by the smoothed maximum; single precision will do to steer. [E, H]
        part_EH = ((worth_EH - best_E[:, None]) / smoothing_L[layer]).astype(np.float32)
        np.exp(part_EH, out=part_EH)
        part_EH /= part_EH.sum(axis=1, keepdims=True)
        hosting_LEG[layer] = part_EH @ sets.hosts_HG.astype(np.float32)
        served_WHS = part_EH.T @ demand_WES.astype(np.float32)
        load_WLG[:, layer] = np.einsum("whs,hsg->wg", served_WHS, sets.share_HSG, optimize=True)
    return dual_L, hosting_LEG, load_WLG


class _Adam:
    """Adam's steps on a list of arrays, in place."""

    def __init__(self, variables: list[Floats]) -> None:
        self.variables = variables
        self.mean = [np.zeros_like(variable) for variable in variables]
        self.square = [np.zeros_like(variable) for variable in variables]
        self.taken = 0

    def take(self, slopes: list[Floats], *, size: float) -> None:
        self.taken += 1
        for variable, mean, square, slope in zip(self.variables, self.mean, self.square, slopes, strict=True):
            mean += (1 - MOMENTUM) * (slope - mean)
            square += (1 - SPREAD_MEMORY) * (slope * slope - square)
            scale = np.sqrt(square / (1 - SPREAD_MEMORY**self.taken))
            step = mean / (1 - MOMENTUM**self.taken)
            variable -= size * np.divide(
                step, scale, out=np.zeros_like(step), where=scale > TINY * scale.max(initial=0.0)
            )
