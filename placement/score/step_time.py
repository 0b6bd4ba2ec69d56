"""Predicted time of the MoE layers under a layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.hardware import Sends
from placement.layout import Layout
from placement.score.copies import Copies
from placement.score.served import matched_table
from placement.step_time import MoeLayerTime, Step
from placement.topology import Topology

Floats = npt.NDArray[np.float64]


def moe_layer_time(
    layout: Layout,
    demand: Demand,
    topology: Topology,
    *,
    dispatch: Dispatch,
    step: Step,
    copies: Copies | None = None,
) -> MoeLayerTime:
    """Predict the time of a MoE layer.

    A step of a window has ``tokens_per_gpu`` tokens per GPU on average, shared over source GPUs and experts as the
    window's counts are. Rows of every GPU follow exactly; copies per token and active experts are expected values as
    if a token chose its experts independently of each other; copies are those counted on a trace, where given.

    Parameters
    ----------
    layout, demand, topology, dispatch
        As in :func:`placement.score.score`.
    step
        Hardware, phase and size of the step.
    copies
        Of this layout, counted on the tokens that the demand was made from, window by window. Where a token travels
        once for each expert, rows say all and copies are not looked at.

    Returns
    -------
    MoeLayerTime
        With basis ``tokens`` where copies were used, else ``counts``.

    Raises
    ------
    EmptyProfile, LayoutMismatch, SlotCountMismatch, SourceCountMismatch
    """
    demand.require_not_empty()
    table = matched_table(layout, demand, topology, dispatch=dispatch)
    if dispatch is Dispatch.EVEN or step.hardware.all_to_all(step.phase).sends is Sends.PER_EXPERT:
        copies = None
    expert_WM = np.zeros((demand.windows, len(demand.moe_layers)))
    all_to_all_WM = np.zeros_like(expert_WM)
    for index, layer in enumerate(demand.moe_layers):
        share_SEG = table.share_SEG(layer)
        for window in np.flatnonzero(demand.tokens_WLE[:, layer].any(axis=1)).tolist():
            sent = None if copies is None else _sent(copies, window, layer, gpus=topology.gpus, step=step)
            traffic = _traffic(demand.tokens_WLSE[window, layer], share_SEG, topology, step, sent)
            expert_WM[window, index] = traffic.expert_s(step)
            all_to_all_WM[window, index] = traffic.all_to_all_s(step)
    if dispatch is Dispatch.EVEN:
        all_to_all_WM[:] = 0.0
    times = _summary(demand, expert_WM, all_to_all_WM, step=step, with_all_to_all=dispatch is not Dispatch.EVEN)
    return times if copies is None else replace(times, basis="tokens")


@dataclass(frozen=True, eq=False)
class _Traffic:
    """What one layer of a step asks of every GPU; float64 [G] each."""

    rows_G: Floats
    active_G: Floats
    nvlink_G: Floats
    rdma_G: Floats

    def expert_s(self, step: Step) -> float:
        return float(step.hardware.expert.seconds(self.rows_G, self.active_G, expert=step.expert).max())

    def all_to_all_s(self, step: Step) -> float:
        kernel = step.hardware.all_to_all(step.phase)
        seconds_G = kernel.seconds(
            rows=self.rows_G, nvlink_copies=self.nvlink_G, rdma_copies=self.rdma_G, hidden=step.expert.hidden
        )
        return float(seconds_G.max())


def _traffic(
    tokens_SE: npt.NDArray[np.int64],
    share_SEG: Floats,
    topology: Topology,
    step: Step,
    sent: tuple[Floats, Floats] | None,
) -> _Traffic:
    tokens_S, mean_choices_SE = _choices(tokens_SE, gpus=topology.gpus, step=step)
    # 1. rows of every GPU [G]
    rows_SG = tokens_S[:, None] * np.einsum("se,seg->sg", mean_choices_SE, share_SEG)
    rows_G = rows_SG.sum(axis=0)
    # 2. chance that a token of source s has expert e computed on GPU g [S, E, G]; no token has an expert twice, so
    #    where counts say more than once per token the chance is 1
    chance_SEG = np.minimum(mean_choices_SE, 1.0)[:, :, None] * share_SEG
    # 3. expected active experts of every GPU [G]: an expert rests when every token passes it by
    passed_by_EG = np.einsum("s,seg->eg", tokens_S, _log_of_rest(chance_SEG))
    active_G = -np.expm1(passed_by_EG).sum(axis=0)
    # 4. copies that travel, by link [G]
    if step.hardware.all_to_all(step.phase).sends is Sends.PER_EXPERT:
        nvlink_G, rdma_G = _by_expert(rows_SG, topology)
    else:
        copies_SG, to_node_SN = sent or _expected(tokens_S, chance_SEG, topology)
        nvlink_G, rdma_G = _by_token(copies_SG, to_node_SN, topology)
    return _Traffic(rows_G, active_G, nvlink_G, rdma_G)


def _choices(tokens_SE: npt.NDArray[np.int64], *, gpus: int, step: Step) -> tuple[Floats, Floats]:
    """Return tokens of every source in a step [S], and how often a token chooses an expert on average [S, E]."""
    routed_S = tokens_SE.sum(axis=1, dtype=np.float64)
    share_SE = np.divide(tokens_SE, routed_S[:, None], out=np.zeros(tokens_SE.shape), where=routed_S[:, None] > 0)
    mean_choices_SE = share_SE * step.top_k
    tokens_S = routed_S / routed_S.sum() * step.tokens_per_gpu * gpus
    if len(tokens_S) == 1:  # uniform sources
        return np.full(gpus, float(step.tokens_per_gpu)), np.repeat(mean_choices_SE, gpus, axis=0)
    return tokens_S, mean_choices_SE


def _log_of_rest(chance: Floats) -> Floats:
    """Return log(1 - chance), finite: a sure choice is as good as sure."""
    rest: Floats = np.log1p(-np.minimum(chance, 1.0 - 1e-15))
    return rest


def _by_expert(copies_SG: Floats, topology: Topology) -> tuple[Floats, Floats]:
    """A copy for each expert, straight to its GPU."""
    same_node_SG = topology.node_of_gpu_G[:, None] == topology.node_of_gpu_G[None, :]
    near_SG = np.where(same_node_SG, copies_SG, 0.0)
    np.fill_diagonal(near_SG, 0.0)
    far_SG = np.where(same_node_SG, 0.0, copies_SG)
    return (
        np.maximum(near_SG.sum(axis=1), near_SG.sum(axis=0)),
        np.maximum(far_SG.sum(axis=1), far_SG.sum(axis=0)),
    )


def _expected(tokens_S: Floats, chance_SEG: Floats, topology: Topology) -> tuple[Floats, Floats]:
    """Return expected copies of a step to every GPU [S, G] and every node [S, N]."""
    gpus, nodes, local = topology.gpus, topology.nodes, topology.gpus_per_node
    copies_SG = tokens_S[:, None] * -np.expm1(_log_of_rest(chance_SEG).sum(axis=1))
    chance_SEN = chance_SEG.reshape(gpus, -1, nodes, local).sum(axis=3)
    return copies_SG, tokens_S[:, None] * -np.expm1(_log_of_rest(chance_SEN).sum(axis=1))


def _sent(copies: Copies, window: int, layer: int, *, gpus: int, step: Step) -> tuple[Floats, Floats] | None:
    """Return the copies of a step as they were counted; None where the trace has no token of this layer and window."""
    counted = int(copies.tokens_WL[window, layer])
    if counted == 0:
        return None
    in_a_step = step.tokens_per_gpu * gpus / counted
    return copies.gpu_WLSG[window, layer] * in_a_step, copies.node_WLSN[window, layer] * in_a_step


def _by_token(copies_SG: Floats, to_node_SN: Floats, topology: Topology) -> tuple[Floats, Floats]:
    """A copy for each GPU; to another node one copy travels to the GPU of the same place there, which passes it on."""
    gpus, nodes, local = topology.gpus, topology.nodes, topology.gpus_per_node
    # [own node, place, node, place] on both sides: source and destination
    copies = copies_SG.reshape(nodes, local, nodes, local)
    to_node = to_node_SN.reshape(nodes, local, nodes)
    node, place = np.arange(nodes), np.arange(local)
    to_node[node, :, node] = 0.0
    # RDMA: sent to every other node, received by the same place there.
    rdma = np.maximum(to_node.sum(axis=2), to_node.sum(axis=0).T)
    # NVLink: from the source in its own node, else from the same place in the destination's node; never to itself.
    copies[:, place, :, place] = 0.0
    received = copies.sum(axis=(0, 1))
    sent = np.einsum("npmq->mp", copies)
    return np.maximum(sent, received).reshape(gpus), rdma.reshape(gpus)


def _summary(
    demand: Demand, expert_WM: Floats, all_to_all_WM: Floats, *, step: Step, with_all_to_all: bool
) -> MoeLayerTime:
    tokens_W = demand.tokens_WLE[:, list(demand.moe_layers)].sum(axis=(1, 2)).astype(np.float64)
    part_W = tokens_W / tokens_W.sum()
    by_window_W = (expert_WM + all_to_all_WM).mean(axis=1)
    expert_s, all_to_all_s = float(part_W @ expert_WM.mean(axis=1)), float(part_W @ all_to_all_WM.mean(axis=1))
    return MoeLayerTime(
        moe_layer_s=expert_s + all_to_all_s,
        expert_s=expert_s,
        all_to_all_s=all_to_all_s if with_all_to_all else None,
        worst_window_s=float(by_window_W[tokens_W > 0].max()),
        hardware=step.hardware.name,
        phase=step.phase,
        tokens_per_gpu=step.tokens_per_gpu,
        basis="counts",
    )
