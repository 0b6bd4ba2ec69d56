"""Predicted time of one layout, with the copies counted on its token trace where there is one."""

from __future__ import annotations

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.hardware import Sends
from placement.layout import Layout
from placement.score.copies import count_copies
from placement.score.step_time import moe_layer_time
from placement.step_time import MoeLayerTime, Step
from placement.tokens import TokenStream
from placement.topology import Topology


def traced_moe_layer_time(
    layout: Layout,
    demand: Demand,
    topology: Topology,
    *,
    dispatch: Dispatch,
    step: Step,
    stream: TokenStream | None,
) -> MoeLayerTime:
    """Predict the time of a MoE layer, see :func:`moe_layer_time`.

    Parameters
    ----------
    layout, demand, topology, dispatch, step
    stream
        The tokens that the demand was made from; None where only counts are known. It is gone through where the kernel
        sends a token once per GPU.
    """
    copies = None
    counts = dispatch is not Dispatch.EVEN and step.hardware.all_to_all(step.phase).sends is Sends.PER_GPU
    if stream is not None and counts:
        name = "layout"
        found = count_copies({name: layout}, stream, topology, dispatch=dispatch, windows=demand.windows)
        copies = found[name]
    return moe_layer_time(layout, demand, topology, dispatch=dispatch, step=step, copies=copies)
