"""Which copies go over which link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.solver.instance import Floats
from placement.topology import Topology


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a machine, for copies in any batch ``[..., source GPU, destination]``.

    A copy to a GPU of another node travels over RDMA to the GPU of the same place there, and from it over NVLink.
    """

    topology: Topology

    def once_per_gpu(self, copies: Floats, to_node: Floats) -> tuple[Floats, Floats]:
        """Return NVLink and RDMA copies of every GPU, the larger of sent and received, float64 [..., G].

        Parameters
        ----------
        copies, to_node
            float64 [..., S, G] and [..., S, N]: tokens of GPU s that are needed on GPU g, on node n.
        """
        nodes, local = self.topology.nodes, self.topology.gpus_per_node
        front = copies.shape[:-2]
        place_of = np.arange(self.topology.gpus) % local
        # A copy that arrives where it is needed has no way over NVLink before it.
        over_nvlink = copies * (place_of[:, None] != place_of[None, :])
        received = over_nvlink.sum(axis=-2)
        by_place = over_nvlink.reshape(*front, nodes, local, nodes, local)
        sent = np.moveaxis(by_place.sum(axis=(-4, -1)), -2, -1).reshape(*front, -1)
        if nodes == 1:
            return np.maximum(sent, received), np.zeros_like(sent)
        leaves = to_node * (self.topology.node_of_gpu_G[:, None] != np.arange(nodes))
        arrives = leaves.reshape(*front, nodes, local, nodes).sum(axis=-3)
        rdma = np.maximum(leaves.sum(axis=-1), np.moveaxis(arrives, -2, -1).reshape(*front, -1))
        return np.maximum(sent, received), rdma

    def once_per_expert(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the same where every row [..., S, G] travels by itself, straight to its GPU."""
        node = self.topology.node_of_gpu_G
        near = rows * ((node[:, None] == node[None, :]) & ~np.eye(self.topology.gpus, dtype=bool))
        far = rows * (node[:, None] != node[None, :])
        return _larger_way(near), _larger_way(far)


def _larger_way(rows: Floats) -> Floats:
    """Return the larger of what every GPU sends and receives."""
    larger: Floats = np.maximum(rows.sum(axis=-1), rows.sum(axis=-2))
    return larger
