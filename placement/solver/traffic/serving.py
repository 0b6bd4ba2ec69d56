"""Where tokens are sent to for an expert, by the hosts of its replicas: the search's own formulation."""

from __future__ import annotations

import numpy as np

from placement.solver.instance import Bools, Floats


def remote_KSG(hosts_KG: Bools, *, nodes: int) -> Floats:
    """Return the probability that a token of GPU s is sent to GPU g for expert k; float64 [K, S, G].

    0 for every g where GPU s hosts the expert itself. Otherwise the first host in the own node, if the node has some
    but not all hosts; else every host with the same probability (:mod:`placement.dispatch` states the engine's rule;
    this is an independent formulation).
    """
    count, gpus = hosts_KG.shape
    hosts_K = hosts_KG.sum(axis=1)
    sent_KSG = np.where(hosts_KG[:, :, None], 0.0, hosts_KG[:, None, :] / hosts_K[:, None, None])
    if nodes == 1:
        return sent_KSG
    by_node_KNg = hosts_KG.reshape(count, nodes, gpus // nodes)
    held_KN = by_node_KNg.sum(axis=2)
    keeps_KN = (held_KN > 0) & (held_KN < hosts_K[:, None])
    first_KNg = by_node_KNg & (np.cumsum(by_node_KNg, axis=2) == 1)
    node_of_S = np.arange(gpus) // (gpus // nodes)
    in_node_SG = node_of_S[:, None] == node_of_S
    near_KSG = first_KNg.reshape(count, 1, gpus) & in_node_SG & ~hosts_KG[:, :, None]
    kept_KS1 = keeps_KN[:, node_of_S][:, :, None] & ~hosts_KG[:, :, None]
    return np.where(kept_KS1, near_KSG.astype(np.float64), sent_KSG)
