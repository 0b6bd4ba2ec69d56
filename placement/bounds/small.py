"""Bounds for few experts, GPUs and slots, where every layer can be searched through."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.small_layers import Layer, LayerBound, best_possible
from placement.bounds.small_shape import Shape, cells, small_shape
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Problem

Floats = npt.NDArray[np.float64]

CELLS_PER_SECOND, LOADS_PER_SECOND, NODES_PER_SECOND, WINDOWS_AT_HALF_SPEED = 3e7, 1.5e7, 4e5, 10
"""Vectors of counts x contents tabled, contents x counts x windows, and parts searched, by one core in a second,
roughly. They turn effort into amounts of work, so that results depend on effort alone and not on the clock."""

FEWEST_NODES, ENOUGH_NODES, CELLS_PER_NODE = 2_000, 50_000, 20
"""Parts searched at least, per layer: more where there is more to search. A search that ends proves more than another
round of prices."""

MOST_ROUNDS = 16
FIRST_FACTOR, FASTER, SLOWER, LEAST_FACTOR = np.log(2.0), 1.2, 0.4, 0.002
FIRST_PRICE = 0.3
LEAST_PRICE = 1e-9
ROUNDING = 1e-9

LOCAL_RELAXATION = (
    "layers searched by branch and bound over replica counts and GPU contents, joined by a price on imbalance <= "
    "{cap:.6g} in every window (Lagrangian dual, no expert twice on a GPU)"
)
IMBALANCE_RELAXATION = (
    "layers searched by branch and bound over replica counts and GPU contents, one layout for all windows "
    "(Lagrangian dual, no expert twice on a GPU)"
)


@dataclass(frozen=True, eq=False)
class SmallLayersBound:
    """A bound with the layouts that were found on the way.

    Attributes
    ----------
    value : float
        Upper bound on ``local_gpu`` under the cap, or lower bound on the worst window's imbalance.
    value_L : ndarray
        float64 [L] over all decoder layers, the parts they contribute at the prices found. For a local share
        ``value`` is their sum plus ``sum(window_price_W) * cap``, for imbalance their sum.
    window_price_W : ndarray
        float64 [W], what a unit of imbalance is worth in each window.
    experts_LGS : ndarray
        int64 [L, G, S], the layouts found at these prices; layers without demand get -1.
    optimal_L : ndarray
        bool [L], the layer's layout is the best there is at these prices.
    relaxation : str
    """

    value: float
    value_L: npt.NDArray[np.float64]
    window_price_W: npt.NDArray[np.float64]
    experts_LGS: npt.NDArray[np.int64]
    optimal_L: npt.NDArray[np.bool_]
    relaxation: str


def small_local_bound(
    problem: Problem,
    *,
    max_imbalance: float | None = None,
    window_price_W: npt.ArrayLike | None = None,
    effort_s: float = 1.0,
) -> SmallLayersBound | None:
    """Bound ``local_gpu`` of all layouts that keep the cap in every window.

    Proof. For prices p_w >= 0 a layout that keeps the cap has ``local <= local - sum_w p_w (imbalance_w - cap)``.
    The right side is a sum over layers, each ``local_l - sum_w p_w weight_wl max_g load_wlg``, and
    :mod:`placement.bounds.small_layers` bounds each over all its layouts. Any prices are sound.

    Parameters
    ----------
    problem
    max_imbalance
        The cap; the problem's own by default.
    window_price_W
        Prices to start from, for example the duals of a solver's master; found from scratch by default.
    effort_s
        About how long to work on one core.

    Returns
    -------
    SmallLayersBound or None
        None where replicas of an expert differ in load (measured sources, several nodes), where nothing is local
        (``even``), where every GPU is local (scope ``node`` on one node), or where the effort is too small for one
        look at all layers.
    """
    if problem.dispatch is not Dispatch.NEAREST_DYNAMIC or problem.local_scope is LocalScope.NODE:
        return None
    cap = problem.max_imbalance if max_imbalance is None else max_imbalance
    layers = _layers(problem, effort_s)
    if layers is None:
        return None
    start_W = np.full(layers.windows, FIRST_PRICE / layers.windows) if window_price_W is None else window_price_W
    best = layers.drive_prices(layers.of_busy(start_W), cap=cap, normalise=lambda price_W: price_W)
    share = min(1.0, max(0.0, best.total(cap) * (1 + ROUNDING)))
    return layers.bound(best, share, best.bound_L, LOCAL_RELAXATION.format(cap=cap))


def small_imbalance_bound(
    problem: Problem, *, window_price_W: npt.ArrayLike | None = None, effort_s: float = 1.0
) -> SmallLayersBound | None:
    """Bound the worst window's imbalance from below, one layout for all windows.

    Proof. The worst window is at least as bad as any mean over windows with weights p_w; the mean is a sum over
    layers, each bounded over all its layouts. That gives away what a mixture of layouts could do better than any one
    of them, which matters less the more layers there are to mix. With one window and all layers searched to the end,
    the bound is the optimum and ``experts_LGS`` reaches it.

    Parameters and None as in :func:`small_local_bound`, but ``even`` dispatch and scope ``node`` are fine here.
    """
    if problem.dispatch is Dispatch.NEAREST_STATIC:
        return None
    layers = _layers(problem, effort_s)
    if layers is None:
        return None
    start_W = np.ones(layers.windows) if window_price_W is None else window_price_W
    layers = layers.without_worth()
    best = layers.drive_prices(layers.of_busy(start_W), cap=0.0, normalise=lambda price_W: price_W / price_W.sum())
    imbalance = max(1.0, -best.total(0.0) * (1 - ROUNDING))
    return layers.bound(best, imbalance, -best.bound_L, IMBALANCE_RELAXATION)


@dataclass(frozen=True, eq=False)
class _Priced:
    """All layers searched at some prices."""

    price_W: Floats
    found: list[LayerBound]
    imbalance_W: Floats

    @property
    def bound_L(self) -> Floats:
        return np.array([layer.bound for layer in self.found])

    def total(self, cap: float) -> float:
        return float(self.bound_L.sum() + cap * self.price_W.sum())


@dataclass(frozen=True, eq=False)
class _Layers:
    """The problem in units of mean GPU loads and shares of all demand; busy windows and MoE layers only."""

    problem: Problem
    shape: Shape
    tokens_WLE: Floats
    weight_WL: Floats
    worth_LE: Floats
    rounds: int
    nodes: int

    @property
    def windows(self) -> int:
        return self.problem.demand.windows

    def of_busy(self, price_W: npt.ArrayLike) -> Floats:
        return np.maximum(np.asarray(price_W, dtype=np.float64)[_busy_windows(self.problem)], LEAST_PRICE)

    def without_worth(self) -> _Layers:
        worth_LE = np.zeros_like(self.worth_LE)
        return _Layers(self.problem, self.shape, self.tokens_WLE, self.weight_WL, worth_LE, self.rounds, self.nodes)

    def drive_prices(self, price_W: Floats, *, cap: float, normalise: Callable[[Floats], Floats]) -> _Priced:
        """Search at changing prices; the smallest bound of all rounds.

        A window above the cap (or above the others' mean) gets dearer, one below cheaper, each by a factor of its own
        that grows while the direction stays and shrinks when it turns (Rprop: Riedmiller and Braun 1993,
        doi:10.1109/ICNN.1993.298623).
        """
        factor_W, direction_W = np.full(len(price_W), FIRST_FACTOR), np.zeros(len(price_W))
        best: _Priced | None = None
        for _ in range(self.rounds):
            price_W = np.maximum(normalise(price_W), LEAST_PRICE)
            now = self._search_all(price_W)
            if best is None or now.total(cap) < best.total(cap):
                best = now
            target = cap or float((price_W * now.imbalance_W).sum() / price_W.sum())
            turned_W = np.sign(now.imbalance_W - target)
            factor_W = np.maximum(LEAST_FACTOR, factor_W * np.where(turned_W * direction_W < 0, SLOWER, FASTER))
            price_W, direction_W = price_W * np.exp(turned_W * factor_W), turned_W
            if len(price_W) == 1 and not cap:
                break
        if best is None:
            raise ValueError(f"{self.rounds} rounds; at least one is needed for a bound.")
        return best

    def _search_all(self, price_W: Floats) -> _Priced:
        found, imbalance_W = [], np.zeros(len(price_W))
        for layer in range(self.worth_LE.shape[0]):
            price_here_W = price_W * self.weight_WL[:, layer]
            whole = price_here_W.sum()
            one = Layer(self.tokens_WLE[:, layer], price_here_W / whole, float(whole), self.worth_LE[layer])
            result = best_possible(self.shape, one, nodes=self.nodes)
            found.append(result)
            imbalance_W += self.weight_WL[:, layer] * self._peak_W(layer, result.experts_GS)
        return _Priced(price_W, found, imbalance_W)

    def _peak_W(self, layer: int, experts_GS: npt.NDArray[np.int64] | None) -> Floats:
        if experts_GS is None:
            return np.ones(len(self.tokens_WLE))
        counts_E = np.bincount(experts_GS.ravel(), minlength=self.tokens_WLE.shape[2])
        peak_W: Floats = (self.tokens_WLE[:, layer] / counts_E)[:, experts_GS].sum(axis=2).max(axis=1)
        return peak_W

    def bound(self, best: _Priced, value: float, value_L: Floats, relaxation: str) -> SmallLayersBound:
        demand, layers = self.problem.demand, list(self.problem.demand.moe_layers)
        all_L, price_W = np.zeros(demand.layers), np.zeros(demand.windows)
        all_L[layers], price_W[_busy_windows(self.problem)] = value_L, best.price_W
        optimal_L = np.ones(demand.layers, dtype=np.bool_)
        experts_LGS = np.full((demand.layers, self.shape.gpus, self.shape.slots_per_gpu), -1, dtype=np.int64)
        for layer, result in zip(layers, best.found, strict=True):
            optimal_L[layer] = result.is_optimum
            if result.experts_GS is not None:
                experts_LGS[layer] = result.experts_GS
        return SmallLayersBound(value, all_L, price_W, experts_LGS, optimal_L, relaxation)


def _busy_windows(problem: Problem) -> npt.NDArray[np.bool_]:
    return np.asarray(problem.demand.tokens_WLE.any(axis=(1, 2)))


def _layers(problem: Problem, effort_s: float) -> _Layers | None:
    demand, gpus = problem.demand, problem.topology.gpus
    alike = demand.sources == "uniform" and problem.topology.nodes == 1
    if not alike and problem.dispatch is not Dispatch.EVEN:
        return None
    layers = list(demand.moe_layers)
    busy_W = _busy_windows(problem)
    sizes = {"experts": demand.experts, "gpus": gpus, "slots_per_gpu": problem.slots_per_gpu}
    alone = math.comb(demand.experts, problem.slots_per_gpu) * gpus**problem.slots_per_gpu
    table_s = cells(**sizes) / CELLS_PER_SECOND + alone * int(busy_W.sum()) / LOADS_PER_SECOND
    least_nodes = min(ENOUGH_NODES, max(FEWEST_NODES, cells(**sizes) // CELLS_PER_NODE))
    nodes_per_s = NODES_PER_SECOND / (1 + demand.windows / WINDOWS_AT_HALF_SPEED)
    rounds = min(MOST_ROUNDS, int(effort_s / (len(layers) * (table_s + least_nodes / nodes_per_s))))
    shape = small_shape(**sizes) if rounds else None
    if shape is None:
        return None
    tokens_WLE = demand.tokens_WLE[busy_W][:, layers].astype(np.float64)
    mean_WL = tokens_WLE.sum(axis=2) / gpus
    return _Layers(
        problem,
        shape,
        tokens_WLE / np.where(mean_WL > 0, mean_WL, 1.0)[:, :, None],
        mean_WL / mean_WL.sum(axis=1, keepdims=True),
        demand.tokens_WLE[:, layers].sum(axis=0) / (demand.total_tokens * gpus),
        rounds,
        max(least_nodes, int((effort_s / rounds / len(layers) - table_s) * nodes_per_s)),
    )
