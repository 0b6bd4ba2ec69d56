"""All host sets of one expert, and who serves whom from each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.dispatch import Dispatch
from placement.topology import Topology

MOST_GPUS = 8
"""There are 2^G - 1 host sets: up to here they are all listed."""


@dataclass(frozen=True, eq=False)
class HostSets:
    """Every non-empty set of GPUs that may host an expert.

    Attributes
    ----------
    hosts_HG : ndarray
        float64 [H, G], 1 where GPU g is in set h.
    nodes_HN : ndarray
        float64 [H, N], 1 where set h has a GPU in node n.
    share_HSG : ndarray
        float64 [H, S, G], the share of source s's tokens that GPU g serves when the expert is on set h; sums to 1
        over g. S = G.
    """

    hosts_HG: npt.NDArray[np.float64]
    nodes_HN: npt.NDArray[np.float64]
    share_HSG: npt.NDArray[np.float64]


def host_sets(topology: Topology, dispatch: Dispatch) -> HostSets | None:
    """List the host sets of a machine; None where a set does not say who serves whom, or there are too many.

    Under ``nearest-static`` a rank's choice depends on the layers before, so it is no function of the host set.
    ``nearest-dynamic``: the own GPU; else the first host of the own node, where that has some but not all hosts; else
    every host the same share. ``even``: every host the same share.
    """
    if dispatch is Dispatch.NEAREST_STATIC or topology.gpus > MOST_GPUS:
        return None
    gpus, inside = topology.gpus, topology.gpus_per_node
    hosts_HG = (np.arange(1, 2**gpus)[:, None] >> np.arange(gpus) & 1).astype(np.bool_)
    hosts_HNg = hosts_HG.reshape(-1, topology.nodes, inside)
    replicas_H = hosts_HG.sum(axis=1)
    share_HSG = np.repeat((hosts_HG / replicas_H[:, None])[:, None, :], gpus, axis=1)
    if dispatch is Dispatch.NEAREST_DYNAMIC:
        held_HN = hosts_HNg.sum(axis=2)
        first_HN = np.arange(topology.nodes) * inside + hosts_HNg.argmax(axis=2)
        some_HS = ((held_HN > 0) & (held_HN < replicas_H[:, None]))[:, topology.node_of_gpu_G]
        only_HSG = first_HN[:, topology.node_of_gpu_G][:, :, None] == np.arange(gpus)
        share_HSG = np.where(some_HS[:, :, None], only_HSG, share_HSG)
        share_HSG = np.where(hosts_HG[:, :, None], np.eye(gpus), share_HSG)
    nodes_HN = np.asarray(hosts_HNg.any(axis=2), dtype=np.float64)
    return HostSets(hosts_HG.astype(np.float64), nodes_HN, share_HSG)
