"""One expert of one layer: its trend over windows, who sends to it, and who serves it."""

from __future__ import annotations

from typing import Any

import numpy as np

from api.errors import BadRequest
from api.service import plans as plan_service
from api.service.context import Service
from api.service.frames import PhaseAsked, demand_of, layout_before, require_same_model
from api.store.models import Plan, Trace
from placement.demand import Demand
from placement.dispatch import Dispatch, dispatch_table
from placement.layout import Layout
from placement.score.served import served_WEG
from placement.topology import Topology


def expert_detail(
    service: Service, trace: Trace, plan: Plan | None, *, layer: int, expert: int, phase: PhaseAsked | None
) -> dict[str, Any]:
    """Return an expert's routed tokens by window and by home GPU; with a plan, its replicas before and after.

    Raises
    ------
    BadRequest, WrongState
    """
    made = None if plan is None else plan_service.made(service, plan)
    ranks = (trace.facts or {}).get("source_ranks")
    demand = demand_of(service, trace, gpus=made.topology.gpus if made else int(ranks or 1), phase=phase)
    if not (layer < demand.layers and expert < demand.experts):
        raise BadRequest(
            f"there is no expert {expert} in layer {layer}: the recording has layers 0 to {demand.layers - 1} and "
            f"experts 0 to {demand.experts - 1}."
        )
    tokens_W = demand.tokens_WLE[:, layer, expert]
    layer_W = demand.tokens_WLE[:, layer].sum(axis=1)
    found: dict[str, Any] = {
        "layer": layer,
        "expert": expert,
        "sources": demand.sources,
        "windows": list(demand.window_names),
        "tokens_by_window": tokens_W.tolist(),
        "uniform_by_window": (layer_W / demand.experts).tolist(),
        "tokens_by_source": None,
    }
    if demand.sources == "measured":
        found["tokens_by_source"] = demand.tokens_WLSE[:, layer, :, expert].sum(axis=0).tolist()
    if plan is not None and made is not None:
        require_same_model(made, demand)
        before = layout_before(service, plan, made, demand)
        for name, layout in (("before", before), ("plan", made.layout)):
            found[name] = _replicas(layout, demand, made.topology, made.options.dispatch, layer=layer, expert=expert)
    return found


def _replicas(
    layout: Layout, demand: Demand, topology: Topology, dispatch: Dispatch, *, layer: int, expert: int
) -> list[dict[str, Any]]:
    table = dispatch_table(layout, topology, dispatch=dispatch)
    served_G = served_WEG(demand, table, layer)[:, expert].sum(axis=0)
    slots_G = layout.replicas_LEG[layer, expert]
    return [
        {
            "gpu": gpu,
            "node": int(topology.node_of_gpu_G[gpu]),
            "slots": int(slots_G[gpu]),
            "tokens": float(served_G[gpu]),
        }
        for gpu in np.flatnonzero(slots_G).tolist()
    ]
