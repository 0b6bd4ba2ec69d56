"""Who computes what: tokens served by every GPU, and how many of them were at home there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.dispatch import SPREAD, Dispatch, DispatchTable, dispatch_table
from placement.errors import LayoutMismatch, SourceCountMismatch
from placement.layout import Layout
from placement.topology import Topology


def loads_WLG(layout: Layout, demand: Demand, topology: Topology, *, dispatch: Dispatch) -> npt.NDArray[np.float64]:
    """Return the tokens that every GPU computes, by window and layer.

    Returns
    -------
    ndarray
        float64 [W, L, G]; all zero in dense layers. Sums over g to the demand of window and layer.

    Raises
    ------
    LayoutMismatch, SlotCountMismatch, SourceCountMismatch
        As in :func:`placement.score.score`.
    """
    table = matched_table(layout, demand, topology, dispatch=dispatch)
    loads = np.zeros((demand.windows, demand.layers, topology.gpus))
    for layer in demand.moe_layers:
        loads[:, layer] = served_WEG(demand, table, layer).sum(axis=1)
    return loads


def matched_table(layout: Layout, demand: Demand, topology: Topology, *, dispatch: Dispatch) -> DispatchTable:
    """Return the dispatch of ``layout``, or raise if layout, demand and topology do not fit together."""
    if (layout.layers, layout.experts) != (demand.layers, demand.experts):
        raise LayoutMismatch(
            f"the layout has {layout.layers} layers x {layout.experts} experts, the demand {demand.layers} x "
            f"{demand.experts}."
        )
    sources = demand.tokens_WLSE.shape[2]
    if demand.sources == "measured" and sources != topology.gpus:
        raise SourceCountMismatch(
            f"demand was measured for {sources} source GPUs, the topology has {topology.gpus}; score on {sources} "
            "GPUs, or forget the sources to score with uniform ones."
        )
    return dispatch_table(layout, topology, dispatch=dispatch)


def served_WEG(demand: Demand, table: DispatchTable, layer: int) -> npt.NDArray[np.float64]:
    """Return the tokens of expert e that GPU g computes in one layer; float64 [W, E, G]."""
    if demand.sources == "uniform":
        tokens_WE1 = demand.tokens_WLE[:, layer, :, None]
        served: npt.NDArray[np.float64] = tokens_WE1 * table.mean_share_EG(layer)
        return served
    return _served_from_measured_WEG(demand.tokens_WLSE[:, layer], table, layer)


def _served_from_measured_WEG(
    tokens_WSE: npt.NDArray[np.int64], table: DispatchTable, layer: int
) -> npt.NDArray[np.float64]:
    windows, gpus, experts = tokens_WSE.shape
    gpu_SE = table.gpu_SE(layer)
    fixed_SE = gpu_SE != SPREAD
    cells = (np.arange(experts)[None, :] * gpus + gpu_SE)[fixed_SE]
    spread_WE = np.where(fixed_SE, 0, tokens_WSE).sum(axis=1)
    served: npt.NDArray[np.float64] = spread_WE[:, :, None] * table.spread_EG(layer)
    for window in range(windows):
        fixed = np.bincount(cells, weights=tokens_WSE[window][fixed_SE], minlength=experts * gpus)
        served[window] += fixed.reshape(experts, gpus)
    return served


def tokens_kept_W(demand: Demand, share_SE: npt.NDArray[np.float64], layer: int) -> npt.NDArray[np.float64]:
    """Return how many tokens stay when share [s, e] of those from s to e does; float64 [W]."""
    if demand.sources == "uniform":
        share_SE = share_SE.mean(axis=0, keepdims=True)
    kept: npt.NDArray[np.float64] = np.einsum("wse,se->w", demand.tokens_WLSE[:, layer], share_SE)
    return kept
