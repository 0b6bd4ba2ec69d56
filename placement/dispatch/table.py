"""Which GPU serves which share of a source's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from placement.dispatch.nearest import SPREAD, nearest_slots
from placement.dispatch.rule import Dispatch
from placement.dispatch.static import static_slots
from placement.errors import SlotCountMismatch
from placement.layout import Layout
from placement.topology import Topology


@dataclass(frozen=True, eq=False)
class DispatchTable:
    """The engine's choice among replicas for one layout, made by :func:`dispatch_table`.

    Kept in the compact form, one slot (or :data:`SPREAD`) per layer, source and expert, and unfolded to shares one
    layer at a time: a full [L, S, E, G] array for 94 layers x 384 experts x 72 GPUs would take 1.5 GB.

    Attributes
    ----------
    layout : Layout
    topology : Topology
    dispatch : Dispatch
    slot_LSE : ndarray
        int32 [L, S, E], read-only: the slot that takes all tokens of the source for the expert, or
        :data:`SPREAD` where every slot of the expert takes the same share (so a GPU that holds it twice takes two).
    """

    layout: Layout
    topology: Topology
    dispatch: Dispatch
    slot_LSE: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        self.slot_LSE.flags.writeable = False

    def gpu_SE(self, layer: int) -> npt.NDArray[np.int64]:
        """Return the GPU that takes all tokens of source s for expert e, or :data:`SPREAD`; int64 [S, E]."""
        slot_SE = self.slot_LSE[layer].astype(np.int64)
        return np.where(slot_SE == SPREAD, SPREAD, slot_SE // self.layout.slots_per_gpu)

    def spread_EG(self, layer: int) -> npt.NDArray[np.float64]:
        """Return the share of GPU g in the slots of expert e: how spread tokens fall; float64 [E, G], rows sum to 1."""
        replicas_EG = self.layout.replicas_LEG[layer].astype(np.float64)
        spread_EG: npt.NDArray[np.float64] = replicas_EG / replicas_EG.sum(axis=1, keepdims=True)
        return spread_EG

    def share_SEG(self, layer: int) -> npt.NDArray[np.float64]:
        """Return the share of source s's tokens for expert e that GPU g serves; float64 [S, E, G], sums to 1 over g."""
        gpu_SE1 = self.gpu_SE(layer)[:, :, None]
        all_of_it_SEG = gpu_SE1 == np.arange(self.topology.gpus)
        return np.where(gpu_SE1 == SPREAD, self.spread_EG(layer)[None], all_of_it_SEG)

    def mean_share_EG(self, layer: int) -> npt.NDArray[np.float64]:
        """Return the mean of :meth:`share_SEG` over sources: the shares under uniform sources; float64 [E, G]."""
        experts, gpus = self.layout.experts, self.topology.gpus
        gpu_SE = self.gpu_SE(layer)
        fixed_SE = gpu_SE != SPREAD
        cell_SE = np.arange(experts)[None, :] * gpus + gpu_SE
        fixed_EG = np.bincount(cell_SE[fixed_SE], minlength=experts * gpus).reshape(experts, gpus)
        spread_sources_E = (~fixed_SE).sum(axis=0)
        mean_EG: npt.NDArray[np.float64] = (fixed_EG + spread_sources_E[:, None] * self.spread_EG(layer)) / gpus
        return mean_EG

    def own_gpu_share_SE(self, layer: int) -> npt.NDArray[np.float64]:
        """Return the share of source s's tokens for expert e that stay on GPU s; float64 [S, E]."""
        gpu_SE = self.gpu_SE(layer)
        stays_SE = gpu_SE == np.arange(self.topology.gpus)[:, None]
        return np.where(gpu_SE == SPREAD, self.spread_EG(layer).T, stays_SE)

    def own_node_share_SE(self, layer: int) -> npt.NDArray[np.float64]:
        """Return the share of source s's tokens for expert e that stay on the node of GPU s; float64 [S, E]."""
        gpu_SE = self.gpu_SE(layer)
        node_of_gpu_G = self.topology.node_of_gpu_G
        by_node_ENg = (self.layout.experts, self.topology.nodes, self.topology.gpus_per_node)
        spread_EN: npt.NDArray[np.float64] = self.spread_EG(layer).reshape(by_node_ENg).sum(axis=2)
        stays_SE = gpu_SE // self.topology.gpus_per_node == node_of_gpu_G[:, None]
        return np.where(gpu_SE == SPREAD, spread_EN[:, node_of_gpu_G].T, stays_SE)


def dispatch_table(layout: Layout, topology: Topology, *, dispatch: Dispatch) -> DispatchTable:
    """Work out how the engine would choose among the replicas of ``layout``.

    Parameters
    ----------
    layout
        All decoder layers, as the engine gets them: under ``nearest-static`` a layer's table depends on the
        layers before it.
    topology
        GPUs and nodes of the engine.
    dispatch
        ``nearest-dynamic``: near replicas first, the rest drawn per token, here as the expected (even) share. The
        engine draws ``randint(0, 65536) % n``, which is even to within ``n / 65536``.
        ``nearest-static``: near replicas first, the rest from each rank's own fixed table, reproduced exactly.
        ``even``: every slot the same share, wherever the token is.

    Raises
    ------
    SlotCountMismatch
        The layout is for another number of GPUs.
    """
    if layout.gpus != topology.gpus:
        raise SlotCountMismatch(
            f"the layout's {layout.slots} slots are on {layout.gpus} GPUs, the topology has {topology.gpus}."
        )
    match dispatch:
        case Dispatch.NEAREST_DYNAMIC:
            slot_LSE = nearest_slots(layout, topology)
        case Dispatch.NEAREST_STATIC:
            slot_LSE = static_slots(layout, topology)
        case Dispatch.EVEN:
            slot_LSE = np.full((layout.layers, layout.gpus, layout.experts), SPREAD, dtype=np.int32)
        case _:
            assert_never(dispatch)
    return DispatchTable(layout, topology, dispatch, slot_LSE)
