"""Every metric of a layout under a demand that needs no token trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.dispatch import Dispatch, DispatchTable
from placement.errors import BadOption
from placement.layout import Layout
from placement.metrics import CapacityMetrics, LayerMetrics, Metrics, WindowMetrics
from placement.score.overflow import USUAL_CAPACITY_FACTORS, overflow_of_layer
from placement.score.served import matched_table, served_WEG, tokens_kept_W
from placement.topology import MAX_GPUS, Topology

NO_ALL_TO_ALL = (
    "dispatch is even (no all-to-all backend): every rank sees every token, so none is more at home on one GPU than "
    "on another"
)


def score(
    layout: Layout, demand: Demand, topology: Topology, *, dispatch: Dispatch, capacity_factor: float = 1.25
) -> Metrics:
    """Measure a layout.

    Parameters
    ----------
    layout
        From anywhere; replicas that share a GPU are accepted and counted.
    demand
        Not empty. Dense layers (all zero) stay out of every figure, and so does a layer in the windows in which it has
        no tokens. Windows without any token have no row in ``windows``.
    topology
        GPUs and nodes of the engine.
    dispatch
        The engine's rule.
    capacity_factor
        A GPU's cap is this times the mean GPU load of the layer and window.

    Returns
    -------
    Metrics
        ``imbalance`` is the sum over windows and layers of the largest GPU load over the same sum of mean loads:
        windows are never added up before the maximum is taken. ``local_gpu`` and ``local_node`` are None under
        ``even`` dispatch, with the reason.

    Raises
    ------
    EmptyProfile
        No tokens at all.
    LayoutMismatch
        Layout and demand differ in layers or experts.
    SlotCountMismatch
        The layout is for another number of GPUs than the topology has.
    SourceCountMismatch
        The demand was measured for another number of source GPUs.
    BadOption
        ``capacity_factor`` is not a number above 0, or so large that nothing could overflow it.
    """
    demand.require_not_empty()
    if not 0 < capacity_factor <= MAX_GPUS:
        raise BadOption(
            f"capacity_factor is {capacity_factor}; it must be a number above 0 and up to {MAX_GPUS}, 1.25 is usual."
        )
    table = matched_table(layout, demand, topology, dispatch=dispatch)
    factors = (capacity_factor, *(factor for factor in USUAL_CAPACITY_FACTORS if factor != capacity_factor))
    sums = _sums_WM(demand, table, capacity_factors=factors)
    windows = _windows(demand, sums, factors)
    layers = _layers(demand, sums)
    used_WM = sums.tokens > 0
    imbalance = _imbalance(sums.largest, sums.mean)
    capacity = _capacity(factors, sums)
    return Metrics(
        local_gpu=_local_share(sums.own_gpu, sums.tokens),
        local_node=_local_share(sums.own_node, sums.tokens),
        local_reason=NO_ALL_TO_ALL if dispatch is Dispatch.EVEN else None,
        imbalance=imbalance,
        balancedness=1 / imbalance,
        sglang_balancedness=float((sums.mean[used_WM] / sums.largest[used_WM]).mean()),
        capacity_factor=capacity_factor,
        overflow_share=capacity[0].overflow_share,
        rerouted=capacity[0].rerouted,
        dropped=capacity[0].dropped,
        capacity=tuple(sorted(capacity, key=lambda row: row.capacity_factor)),
        worst_window=max(windows, key=lambda window: window.imbalance),
        worst_layer=max(layers, key=lambda layer: layer.imbalance),
        windows=windows,
        layers=layers,
        duplicated_slots=layout.duplicated_slots(),
        sources=demand.sources,
        dispatch=dispatch.value,
    )


class _Sums(NamedTuple):
    """What every figure is a ratio of, in tokens: float64 [W] for one layer, [W, M] for all M MoE layers.

    ``overflow`` and ``rerouted`` have one more axis in front, the F capacity factors.
    """

    tokens: npt.NDArray[np.float64]
    largest: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    own_gpu: npt.NDArray[np.float64]
    own_node: npt.NDArray[np.float64]
    overflow: npt.NDArray[np.float64]
    rerouted: npt.NDArray[np.float64]


def _sums_WM(demand: Demand, table: DispatchTable, *, capacity_factors: Sequence[float]) -> _Sums:
    by_layer = [_sums_W(demand, table, layer, capacity_factors=capacity_factors) for layer in demand.moe_layers]
    return _Sums(*(np.stack(column, axis=-1) for column in zip(*by_layer, strict=True)))


def _sums_W(demand: Demand, table: DispatchTable, layer: int, *, capacity_factors: Sequence[float]) -> _Sums:
    served = served_WEG(demand, table, layer)
    load_WG = served.sum(axis=1)
    hosts_EG = table.layout.replicas_LEG[layer] > 0
    overflows = [
        [overflow_of_layer(served_EG, hosts_EG, capacity_factor=factor) for served_EG in served]
        for factor in capacity_factors
    ]
    return _Sums(
        tokens=demand.tokens_WLE[:, layer].sum(axis=1).astype(np.float64),
        largest=load_WG.max(axis=1),
        mean=load_WG.mean(axis=1),
        own_gpu=_tokens_at_home_W(demand, table.own_gpu_share_SE(layer), table, layer),
        own_node=_tokens_at_home_W(demand, table.own_node_share_SE(layer), table, layer),
        overflow=np.array([[overflow.tokens for overflow in row] for row in overflows]),
        rerouted=np.array([[overflow.rerouted for overflow in row] for row in overflows]),
    )


def _tokens_at_home_W(
    demand: Demand, share_SE: npt.NDArray[np.float64], table: DispatchTable, layer: int
) -> npt.NDArray[np.float64]:
    """Return the tokens that stay at home, NaN where no token has a home."""
    if table.dispatch is Dispatch.EVEN:
        return np.full(demand.windows, np.nan)
    return tokens_kept_W(demand, share_SE, layer)


def _windows(demand: Demand, sums: _Sums, factors: Sequence[float]) -> tuple[WindowMetrics, ...]:
    windows = []
    for window in np.flatnonzero(sums.tokens.any(axis=1)).tolist():
        row = _Sums(*(values[..., window, :] for values in sums))
        chosen, *_ = _capacity(factors, row)
        windows.append(
            WindowMetrics(
                name=demand.window_names[window],
                tokens=int(demand.tokens_WLE[window].sum()),
                local_gpu=_local_share(row.own_gpu, row.tokens),
                local_node=_local_share(row.own_node, row.tokens),
                imbalance=_imbalance(row.largest, row.mean),
                overflow_share=chosen.overflow_share,
                rerouted=chosen.rerouted,
                dropped=chosen.dropped,
            )
        )
    return tuple(windows)


def _layers(demand: Demand, sums: _Sums) -> tuple[LayerMetrics, ...]:
    layers = []
    for index, layer in enumerate(demand.moe_layers):
        column = _Sums(*(values[..., index] for values in sums))
        local_gpu = _local_share(column.own_gpu, column.tokens)
        layers.append(LayerMetrics(layer, local_gpu, _imbalance(column.largest, column.mean)))
    return tuple(layers)


def _capacity(factors: Sequence[float], sums: _Sums) -> list[CapacityMetrics]:
    """Return the shares above the caps at every capacity factor, in the order of the factors."""
    rows = []
    for index, factor in enumerate(factors):
        overflow_share = _share(sums.overflow[index], sums.tokens)
        rerouted = min(_share(sums.rerouted[index], sums.tokens), overflow_share)
        rows.append(CapacityMetrics(factor, overflow_share, rerouted, overflow_share - rerouted))
    return rows


def _share(part: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> float:
    return math.fsum(part.ravel()) / math.fsum(whole.ravel())


def _local_share(at_home: npt.NDArray[np.float64], tokens: npt.NDArray[np.float64]) -> float | None:
    share = _share(at_home, tokens)
    return None if math.isnan(share) else share


def _imbalance(largest: npt.NDArray[np.float64], mean: npt.NDArray[np.float64]) -> float:
    """Sum of the largest loads over the sum of the mean loads; never below 1, whatever the rounding of the sums."""
    return max(_share(largest, mean), 1.0)
