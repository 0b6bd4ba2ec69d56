"""A cheap lower bound on imbalance over many windows: what one GPU can hold.

Where every replica of an expert carries the same load (``even``; ``nearest-dynamic`` with uniform sources on one node),
a GPU's load follows from its *content*, S experts, and from how many replicas n_e each of them has. In units of the
mean GPU load it is ``v[w] = sum_{e in content} w_e / n_e``. The G - 1 other GPUs share ``G - v[w]``, so one of them has
at least the mean of that, and the largest load of window w is at least

    b(v[w]) = max( v[w], (G - v[w]) / (G - 1) ).

Relaxation: every expert is in some content, and nothing else is kept of a layout. So for any prices mu_w >= 0 that add
up to 1, a layer's ``sum_w mu_w max_g load`` is at least the largest over experts of the smallest over contents with
that expert, and over its members' replica counts, of ``sum_w mu_w b(v[w])``. A content that is near the mean in one
window is far from it in another: with one window this says next to nothing, with many it binds.

The smallest is found without looking at all counts. b is convex, so (Jensen) ``sum_w mu_w b(v[w]) >= b(sum_w mu_w
v[w])``: one number for a content and its counts; those where it is no smaller than what was found are left out.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.counting import ShareRule
from placement.bounds.imbalance import share_rule
from placement.problem import Problem

Floats = npt.NDArray[np.float64]

COUNTS_PER_SECOND, WINDOWS_AT_HALF_SPEED, SECONDS_PER_CONTENT = 5e7, 10, 2e-4
"""Contents x replica counts of one window that one core looks at in a second, and what a content costs besides;
roughly. They turn effort into amounts of work, so that results depend on effort alone and not on the clock."""

MOST_COUNTS = 2_000_000
"""Replica counts of one content that are listed at most."""

AT_ONCE = 512
"""Replica counts whose loads are worked out together."""

MOST_ROUNDS = 8
LEAST_PRICE = 1e-9
ROUNDING = 1e-9

RELAXATION = "contents of one GPU over all windows, every expert in some content (no expert twice on a GPU)"


@dataclass(frozen=True, eq=False)
class GpuContentsBound:
    """A bound on a mean over windows, and so on the worst of them.

    Attributes
    ----------
    value : float
        >= 1. For every layout ``sum_w window_price_W[w] * imbalance of w`` is at least this, so the worst window is.
    value_L : ndarray
        float64 [L] over all decoder layers, the parts that they contribute; 0 for layers without demand.
    window_price_W : ndarray
        float64 [W], adds up to 1; 0 for windows without demand.
    relaxation : str
    """

    value: float
    value_L: npt.NDArray[np.float64]
    window_price_W: npt.NDArray[np.float64]
    relaxation: str


def gpu_contents_bound(
    problem: Problem,
    *,
    window_price_W: npt.ArrayLike | None = None,
    effort_s: float = 1.0,
    most_rounds: int = MOST_ROUNDS,
) -> GpuContentsBound | None:
    """Bound the worst window's imbalance by what one GPU can hold; the module says how and proves it.

    Parameters
    ----------
    problem
    window_price_W
        Weights of the windows' mean that is bounded; all equal by default. With weights in proportion to the
        windows' tokens and one round, ``value`` bounds the sum over windows of the largest loads, over the sum of
        the means.
    effort_s
        About how long to work on one core.
    most_rounds
        Prices are changed towards the windows that are bad anyway while effort is left, at most so often; 1 keeps
        the ones given.

    Returns
    -------
    GpuContentsBound or None
        None where replicas of an expert differ in load (measured sources, several nodes, ``nearest-static``), with
        one GPU, or where the effort is too small for one look at all layers.
    """
    demand, gpus, slots_per_gpu = problem.demand, problem.topology.gpus, problem.slots_per_gpu
    if share_rule(demand, problem.topology, problem.dispatch) is not ShareRule.EQUAL or gpus == 1:
        return None
    busy_W, layers = np.asarray(demand.tokens_WLE.any(axis=(1, 2))), list(demand.moe_layers)
    windows = int(busy_W.sum())
    rounds = min(most_rounds, int(effort_s / _seconds(demand.experts, gpus, slots_per_gpu, windows) / len(layers)))
    if rounds < 1:
        return None
    tokens_WLE = demand.tokens_WLE[busy_W][:, layers].astype(np.float64)
    mean_WL = tokens_WLE.sum(axis=2) / gpus
    load_WLE = tokens_WLE / np.where(mean_WL > 0, mean_WL, 1.0)[:, :, None]
    weight_WL = mean_WL / mean_WL.sum(axis=1, keepdims=True)
    counts_KS = _counts(demand.experts, gpus, slots_per_gpu)
    price_W = np.ones(windows) if window_price_W is None else np.asarray(window_price_W, dtype=np.float64)[busy_W]
    best: GpuContentsBound | None = None
    for index in range(rounds):
        price_W = np.maximum(price_W, LEAST_PRICE)
        price_W = price_W / price_W.sum()
        value_L, least_W = np.zeros(demand.layers), np.zeros(windows)
        for row, layer in enumerate(layers):
            price_here_W = price_W * weight_WL[:, row]
            whole = float(price_here_W.sum())
            value, peak_W = _hardest_expert(load_WLE[:, row], price_here_W / whole, counts_KS, gpus=gpus)
            value_L[layer] = whole * value
            least_W += weight_WL[:, row] * peak_W
        if best is None or value_L.sum() > best.value:
            all_W = np.zeros(demand.windows)
            all_W[busy_W] = price_W
            best = GpuContentsBound(max(1.0, float(value_L.sum()) * (1 - ROUNDING)), value_L, all_W, RELAXATION)
        # Windows that are worse than the mean get dearer; the steps get shorter.
        above_W = least_W - price_W @ least_W
        price_W = price_W * np.exp(above_W / max(float(np.abs(above_W).max()), LEAST_PRICE) / (1 + index))
    return best


def _seconds(experts: int, gpus: int, slots_per_gpu: int, windows: int) -> float:
    """Return about how long a layer takes; infinite where the counts of a content are too many to list."""
    counts = int(gpus**slots_per_gpu)
    if counts > MOST_COUNTS:
        return math.inf
    by_counts = counts * (1 + windows / WINDOWS_AT_HALF_SPEED) / COUNTS_PER_SECOND
    return math.comb(experts, slots_per_gpu) * (by_counts + SECONDS_PER_CONTENT)


def _counts(experts: int, gpus: int, slots_per_gpu: int) -> Floats:
    """List replica counts of a content's members that leave 1 to G replicas to each of the other experts; [K, S]."""
    axes = np.indices((gpus,) * slots_per_gpu).reshape(slots_per_gpu, -1)
    counts_KS = axes.T + 1.0
    others, left_K = experts - slots_per_gpu, gpus * slots_per_gpu - counts_KS.sum(axis=1)
    return np.asarray(counts_KS[(left_K >= others) & (left_K <= others * gpus)])


def _hardest_expert(load_WE: Floats, part_W: Floats, counts_KS: Floats, *, gpus: int) -> tuple[float, Floats]:
    """Return the largest over experts of the smallest bound over contents with it, and its parts by window; [W]."""
    experts, slots_per_gpu = load_WE.shape[1], counts_KS.shape[1]
    inverse_KS = 1.0 / counts_KS
    mean_E = part_W @ load_WE
    smallest_E, peak_EW = np.full(experts, np.inf), np.zeros((experts, len(part_W)))
    for content in itertools.combinations(range(experts), slots_per_gpu):
        members_S = np.array(content)
        mean_bound_K = _largest_load(inverse_KS @ mean_E[members_S], gpus=gpus)
        open_K = np.flatnonzero(mean_bound_K < smallest_E[members_S].max())
        open_K = open_K[np.argsort(mean_bound_K[open_K], kind="stable")]
        for first in range(0, len(open_K), AT_ONCE):
            rows_K = open_K[first : first + AT_ONCE]
            if mean_bound_K[rows_K[0]] >= smallest_E[members_S].max():
                break
            peak_KW = _largest_load(inverse_KS[rows_K] @ load_WE[:, members_S].T, gpus=gpus)
            bound_K = peak_KW @ part_W
            row = int(bound_K.argmin())
            better_S = members_S[smallest_E[members_S] > bound_K[row]]
            smallest_E[better_S], peak_EW[better_S] = bound_K[row], peak_KW[row]
    hardest = int(smallest_E.argmax())
    return float(smallest_E[hardest]), peak_EW[hardest]


def _largest_load(load: Floats, *, gpus: int) -> Floats:
    """Return what the largest GPU load is at least where one GPU has ``load``, in mean GPU loads."""
    return np.asarray(np.maximum(load, (gpus - load) / (gpus - 1)))
