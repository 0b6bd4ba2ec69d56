"""The engine's preference for near replicas: own GPU, then own node, else no single one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.layout import Layout
from placement.topology import Topology

SPREAD = -1
"""In a slot table: no single slot takes this source's tokens for this expert; they go over all of its slots."""


def nearest_slots(layout: Layout, topology: Topology) -> npt.NDArray[np.int32]:
    """Return the slot that every source GPU prefers for every expert, before any draw.

    In order: the only slot there is; the first slot on the source's own GPU; the first slot on its node, when that node
    holds some but not all slots of the expert; else none. "Some but not all" counts slots, so an expert that is twice
    on one GPU counts twice.

    Returns
    -------
    ndarray
        int32 [L, S, E] with S = GPUs; :data:`SPREAD` where no slot is preferred.

    Notes
    -----
    SGLang ``srt/eplb/expert_location.py``, ``_find_nearest_expert``. The node rule holds in the engine as long as no
    rank was added at run time (elastic expert parallelism).
    """
    slot_LSE = np.empty((layout.layers, layout.gpus, layout.experts), dtype=np.int32)
    for layer in range(layout.layers):
        slot_LSE[layer] = _nearest_in_layer(layout, topology, layer)
    return slot_LSE


def _nearest_in_layer(layout: Layout, topology: Topology, layer: int) -> npt.NDArray[np.int32]:
    # Step 1: first slot of each expert on each GPU and node; `slots` stands for "none there". [E, G], [E, N]
    first_EG = np.full((layout.experts, layout.gpus), layout.slots, dtype=np.int32)
    slot_P = np.arange(layout.slots, dtype=np.int32)
    np.minimum.at(first_EG, (layout.slot_to_expert_LP[layer], slot_P // layout.slots_per_gpu), slot_P)
    by_node_ENg = (layout.experts, topology.nodes, topology.gpus_per_node)
    first_EN = first_EG.reshape(by_node_ENg).min(axis=2)

    # Step 2: which nodes hold some but not all slots of an expert. [E, N]
    replicas_EG = layout.replicas_LEG[layer]
    held_EN = replicas_EG.reshape(by_node_ENg).sum(axis=2)
    total_E = replicas_EG.sum(axis=1)
    some_EN = (held_EN > 0) & (held_EN < total_E[:, None])

    # Step 3: own GPU before own node before none; an expert with one slot has no choice. [S, E]
    node_of_source_S = topology.node_of_gpu_G
    in_node_SE = np.where(some_EN, first_EN, SPREAD)[:, node_of_source_S].T
    own_SE = first_EG.T
    slot_SE = np.where(own_SE < layout.slots, own_SE, in_node_SE)
    chosen_SE: npt.NDArray[np.int32] = np.where(total_E == 1, first_EG.min(axis=1), slot_SE)
    return chosen_SE
