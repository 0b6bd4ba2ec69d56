"""Who sends how much to whom under a layout: routed tokens from home GPU to serving GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from api.service import plans as plan_service
from api.service.context import Service
from api.service.frames import LayoutAsked, PhaseAsked, demand_of, layout_before, require_same_model
from api.store.models import Plan, Trace
from placement.demand import Demand
from placement.dispatch import Dispatch, DispatchTable, dispatch_table
from placement.layout import Layout
from placement.topology import Topology


@dataclass(frozen=True, eq=False)
class Traffic:
    """Routed tokens from every home GPU to every serving GPU, all layers and windows added up.

    Attributes
    ----------
    tokens_SG : ndarray
        float64 [S, G]; the diagonal never leaves its GPU.
    topology : Topology
    sources : {"measured", "uniform"}
        Whether home GPUs were recorded, or tokens were taken as spread evenly.
    """

    tokens_SG: npt.NDArray[np.float64]
    topology: Topology
    sources: str

    @property
    def by_node_NN(self) -> npt.NDArray[np.float64]:
        """The same from node to node, float64 [N, N]."""
        nodes, per_node = self.topology.nodes, self.topology.gpus_per_node
        by_node: npt.NDArray[np.float64] = self.tokens_SG.reshape(nodes, per_node, nodes, per_node).sum(axis=(1, 3))
        return by_node

    @property
    def shares(self) -> dict[str, float]:
        """Share of routed tokens that stay on their GPU, go to another GPU of the node, and leave the node."""
        total = float(self.tokens_SG.sum())
        gpu, node = float(np.trace(self.tokens_SG)) / total, float(np.trace(self.by_node_NN)) / total
        return {"local": gpu, "same_node": node - gpu, "remote": 1.0 - node}

    def to_dict(self) -> dict[str, Any]:
        return {
            "gpus": self.topology.gpus,
            "nodes": self.topology.nodes,
            "sources": self.sources,
            "tokens": np.rint(self.tokens_SG).astype(np.int64).tolist(),
            "tokens_by_node": np.rint(self.by_node_NN).astype(np.int64).tolist(),
            "shares": self.shares,
        }


def traffic(service: Service, trace: Trace, plan: Plan, *, layout: LayoutAsked, phase: PhaseAsked | None) -> Traffic:
    """Return the traffic of a recording under a plan's layout, or under the one it would replace.

    Raises
    ------
    WrongState, BadRequest, EmptyProfile
    """
    made = plan_service.made(service, plan)
    demand = demand_of(service, trace, gpus=made.topology.gpus, phase=phase).require_not_empty()
    require_same_model(made, demand)
    chosen = made.layout if layout == "plan" else layout_before(service, plan, made, demand)
    return traffic_of(chosen, demand, made.topology, dispatch=made.options.dispatch)


def traffic_of(layout: Layout, demand: Demand, topology: Topology, *, dispatch: Dispatch) -> Traffic:
    """Return the traffic of a demand under a layout."""
    table = dispatch_table(layout, topology, dispatch=dispatch)
    tokens_SG = np.zeros((topology.gpus, topology.gpus))
    for layer in demand.moe_layers:
        tokens_SG += _of_layer_SG(demand, table, layer)
    return Traffic(tokens_SG, topology, demand.sources)


def _of_layer_SG(demand: Demand, table: DispatchTable, layer: int) -> npt.NDArray[np.float64]:
    share_SEG = table.share_SEG(layer)
    tokens_SE = demand.tokens_WLSE[:, layer].sum(axis=0).astype(np.float64)
    if demand.sources == "uniform":
        tokens_SE = np.broadcast_to(tokens_SE / share_SEG.shape[0], share_SEG.shape[:2])
    sent_SG: npt.NDArray[np.float64] = np.matmul(tokens_SE[:, None, :], share_SEG)[:, 0]
    return sent_SG
