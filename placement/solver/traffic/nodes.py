"""Which GPUs share a node: the last freedom, used for few copies between nodes."""

from __future__ import annotations

import numpy as np

from placement.solver.instance import Bools, Floats, Ints
from placement.solver.plans import Plans
from placement.solver.starts import hosts_of_slots, slots_of_hosts
from placement.solver.traffic.layer_tokens import LayerTokens
from placement.solver.traffic.tasks import TrafficSearcher

EXCHANGES = 400
"""Exchanges of two GPUs between nodes that are made per layer, at most."""


def with_nodes_arranged(searcher: TrafficSearcher, plans: Plans) -> Plans:
    """Exchange GPUs between nodes so that tokens need fewer nodes, where nothing else becomes worse.

    Only for uniform homes: GPUs are then alike. A layer whose copies or peaks rise by its replicas being met in other
    nodes stays as it is.
    """
    instance = searcher.instance
    if instance.nodes == 1 or searcher.layers[0].home_T is not None:
        return plans
    hosts_LEG = hosts_of_slots(plans.slots_LGP, experts=instance.experts)
    arranged = [
        hosts_EG[:, _order_of_gpus(tokens, hosts_EG, nodes=instance.nodes)]
        for tokens, hosts_EG in zip(searcher.layers, hosts_LEG, strict=True)
    ]
    changed = searcher.measured(slots_of_hosts(np.stack(arranged)))
    as_good_L = (changed.local_L >= plans.local_L * (1 + 1e-9)) & (changed.peak_WL <= plans.peak_WL * (1 + 1e-12)).all(
        axis=0
    )
    return Plans(
        np.where(as_good_L[:, None, None], changed.slots_LGP, plans.slots_LGP),
        np.where(as_good_L, changed.local_L, plans.local_L),
        np.where(as_good_L, changed.peak_WL, plans.peak_WL),
    )


def _order_of_gpus(tokens: LayerTokens, hosts_EG: Bools, *, nodes: int) -> Ints:
    """Return the GPUs in a new order, node by node, found by exchanges that leave most needed pairs in one node."""
    together_GG = _needed_together(tokens, hosts_EG)
    gpus = len(together_GG)
    node_of_G = np.arange(gpus) // (gpus // nodes)
    for _ in range(EXCHANGES):
        in_node_GN = together_GG @ (node_of_G[:, None] == np.arange(nodes))
        own_G = in_node_GN[np.arange(gpus), node_of_G]
        # Gain of a in b's node and b in a's, less what they had of each other.
        gain_GG = in_node_GN[:, node_of_G] - own_G[:, None]
        gain_GG = gain_GG + gain_GG.T - 2 * together_GG
        gain_GG[node_of_G[:, None] == node_of_G] = -np.inf
        a, b = np.unravel_index(int(gain_GG.argmax()), gain_GG.shape)
        if gain_GG[a, b] <= 1e-9:
            break
        node_of_G[a], node_of_G[b] = node_of_G[b], node_of_G[a]
    return np.argsort(node_of_G, kind="stable")


def _needed_together(tokens: LayerTokens, hosts_EG: Bools) -> Floats:
    """Return how many tokens need both GPUs, replicas shared out evenly; float64 [G, G], 0 on the diagonal."""
    share_EG = np.vstack([hosts_EG / hosts_EG.sum(axis=1, keepdims=True), np.zeros(hosts_EG.shape[1])])
    missed_TG = np.ones((tokens.tokens, hosts_EG.shape[1]))
    for column in range(tokens.experts_TK.shape[1]):
        missed_TG *= 1 - share_EG[tokens.experts_TK[:, column]]
    needed_TG = 1 - missed_TG
    together_GG: Floats = needed_TG.T @ needed_TG
    np.fill_diagonal(together_GG, 0.0)
    return together_GG
