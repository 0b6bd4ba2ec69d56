"""GPUs and the nodes that join them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import networkx as nx
import numpy as np
import numpy.typing as npt

from placement.errors import BadTopology, GpusNotPositive
from placement.notice import Notice

MAX_GPUS = 2**16
"""Far above any machine, and low enough for every product with layers and experts to stay within 64 bits."""


@dataclass(frozen=True)
class Topology:
    """EP ranks in order, all nodes of equal size, ranks of one node next to each other.

    That is the only shape the engine's "nearest" dispatch knows: it computes a rank's node as
    ``rank // (ep_size // nnodes)`` (sglang ``srt/eplb/expert_location.py``).

    Attributes
    ----------
    gpus : int
        Number of GPUs (EP ranks), >= 1.
    nodes : int
        Number of nodes, a divisor of ``gpus``.
    """

    gpus: int
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.nodes < 1:
            raise GpusNotPositive(f"got {self.gpus} GPUs on {self.nodes} nodes; both must be at least 1.")
        if self.gpus > MAX_GPUS:
            raise BadTopology(f"got {self.gpus} GPUs; at most {MAX_GPUS} are planned for.")
        if self.gpus % self.nodes:
            raise BadTopology(f"{self.gpus} GPUs do not divide evenly over {self.nodes} nodes.")

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes

    @property
    def node_of_gpu_G(self) -> npt.NDArray[np.int64]:
        """Node of every GPU, int64 [G]."""
        return np.arange(self.gpus) // self.gpus_per_node

    def graph(self) -> nx.Graph:
        """Return GPUs and node switches as a graph: NVLink edges inside a node, RDMA edges between nodes."""
        graph = nx.Graph()
        for gpu, node in enumerate(self.node_of_gpu_G.tolist()):
            graph.add_edge(("gpu", gpu), ("node", node), link="nvlink")
        for node in range(self.nodes if self.nodes > 1 else 0):
            graph.add_edge(("node", node), ("fabric", 0), link="rdma")
        return graph


def flat_or_nodes(*, gpus: int, nodes: int) -> tuple[Topology, list[Notice]]:
    """Build the topology, or a flat one with a ``FLAT_TOPOLOGY`` notice when nodes do not divide the GPUs."""
    if nodes > 1 and gpus >= 1 and gpus % nodes:
        detail = f"{gpus} GPUs do not divide over {nodes} nodes: planned as one flat node, node locality was not used."
        return Topology(gpus), [Notice("FLAT_TOPOLOGY", detail)]
    return Topology(gpus, nodes), []


def from_cost_matrix(cost_GG: Sequence[Sequence[float]], *, gpus: int) -> Topology:
    """Find the nodes in a matrix of link costs between ranks.

    GPUs joined by links of the lowest non-zero cost form a node (connected components).

    Parameters
    ----------
    cost_GG
        Cost from GPU to GPU, any unit; square, finite, non-negative, zero on the diagonal.
    gpus
        Expected size.

    Raises
    ------
    BadTopology
        Naming the first bad entry, or that the nodes found are not equal runs of ranks.
    """
    _check_cost_matrix(cost_GG, gpus=gpus)
    costs_GG = np.asarray(cost_GG, dtype=float)
    links = [(a, b) for a in range(gpus) for b in range(gpus) if a != b]
    if not links:
        return Topology(gpus)
    lowest = min(costs_GG[a, b] for a, b in links)
    highest = max(costs_GG[a, b] for a, b in links)
    if lowest == highest:
        return Topology(gpus)
    graph = nx.Graph()
    graph.add_nodes_from(range(gpus))
    graph.add_edges_from((a, b) for a, b in links if max(costs_GG[a, b], costs_GG[b, a]) <= lowest)
    groups = sorted(sorted(group) for group in nx.connected_components(graph))
    expected = Topology(gpus, len(groups)).node_of_gpu_G if gpus % len(groups) == 0 else None
    found = np.empty(gpus, dtype=np.int64)
    for node, group in enumerate(groups):
        found[group] = node
    if expected is None or not np.array_equal(expected, found):
        raise BadTopology(
            f"the cheapest links form the nodes {groups}; nodes must be equal runs of neighbouring ranks."
        )
    return Topology(gpus, len(groups))


def _check_cost_matrix(cost_GG: Sequence[Sequence[float]], *, gpus: int) -> None:
    if len(cost_GG) != gpus:
        raise BadTopology(f"the cost matrix has {len(cost_GG)} rows; {gpus} are needed, one per GPU.")
    for row, costs in enumerate(cost_GG):
        if len(costs) != gpus:
            raise BadTopology(f"row {row} of the cost matrix has {len(costs)} entries; it must be {gpus} x {gpus}.")
        for column, cost in enumerate(costs):
            is_number = isinstance(cost, Real) and not isinstance(cost, bool)
            if not is_number or not 0 <= cost <= sys.float_info.max:
                raise BadTopology(f"cost [{row}][{column}] is {cost}; costs are finite numbers >= 0.")
        if costs[row] != 0:
            raise BadTopology(f"cost [{row}][{row}] is {costs[row]}; a GPU reaches itself at cost 0.")
