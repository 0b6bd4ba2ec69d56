"""One layer's predicted time, as a sum over experts under a few maxima.

Rows, active experts and the logarithms of "no expert of this token is there" add up over experts, so an exchange of two
experts changes the sums by theirs alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.dispatch import Dispatch
from placement.hardware import Sends
from placement.problem import Problem
from placement.solver.instance import Bools, Floats, Ints
from placement.solver.step_time.counted import SURE, Sent
from placement.solver.step_time.links import Links
from placement.step_time import Step
from placement.topology import Topology

MEAN_WEIGHT = 1e-3
"""Weight of the mean over GPUs beside the maximum: exchanges below the busiest GPU are worth something too."""


@dataclass(frozen=True, eq=False)
class Sums:
    """What adds up over experts, in any batch in front.

    Attributes
    ----------
    rows : ndarray
        float64 [..., W, G].
    active : ndarray
        float64 [..., W, G].
    flow : ndarray
        float64 [..., W, S, G]: logarithms where a token travels once per GPU, rows where once per expert.
    to_node : ndarray
        float64 [..., W, S, N], logarithms; empty on one node and where tokens travel once per expert.
    """

    rows: Floats
    active: Floats
    flow: Floats
    to_node: Floats

    def pick(self, index: Ints) -> Sums:
        return Sums(self.rows[index], self.active[index], self.flow[index], self.to_node[index])

    def total(self) -> Sums:
        """Return the sum over the first axis."""
        return Sums(*(each.sum(axis=0) for each in (self.rows, self.active, self.flow, self.to_node)))

    def changed(self, old: Sums, new: Sums) -> Sums:
        """Return these sums without the old experts and with the new ones."""
        return Sums(
            self.rows - old.rows + new.rows,
            self.active - old.active + new.active,
            self.flow - old.flow + new.flow,
            self.to_node - old.to_node + new.to_node,
        )


@dataclass(frozen=True, eq=False)
class LayerTimes:
    """One layer of a problem.

    Attributes
    ----------
    choices_ESW : ndarray
        float64 [E, W, S], how often a token of s chooses e on average.
    tokens_WS : ndarray
        float64 [W, S], tokens of every source in a step; S is the number of GPUs.
    part_W : ndarray
        float64 [W], the windows' weights.
    step : Step
    topology : Topology
    even : bool
        Whether there is no all-to-all.
    """

    choices_EWS: Floats
    tokens_WS: Floats
    part_W: Floats
    step: Step
    topology: Topology
    even: bool

    def sums(self, expert_K: Ints, hosts_KG: Bools) -> Sums:
        """Return what experts add when hosted so, a batch of K."""
        share_KSG = self.shares(hosts_KG)
        choices_KWS = self.choices_EWS[expert_K]
        # 1. rows [K, W, S, G]
        rows_KWSG = (choices_KWS * self.tokens_WS)[..., None] * share_KSG[:, None]
        # 2. chance that a token does not have this expert there, as logarithm
        chance_KWS = np.minimum(choices_KWS, 1.0)
        absent_KWSG = np.log1p(-np.minimum(chance_KWS[..., None] * share_KSG[:, None], SURE))
        # 3. active when any token of any source has it there [K, W, G]
        active_KWG = -np.expm1((self.tokens_WS[..., None] * absent_KWSG).sum(axis=2))
        nothing = np.zeros((*chance_KWS.shape, 0))
        if self.even:
            return Sums(rows_KWSG.sum(axis=2), active_KWG, nothing, nothing)
        if self._kernel_sends is Sends.PER_EXPERT:
            return Sums(rows_KWSG.sum(axis=2), active_KWG, rows_KWSG, nothing)
        if self.topology.nodes == 1:
            return Sums(rows_KWSG.sum(axis=2), active_KWG, absent_KWSG, nothing)
        share_KSN = share_KSG.reshape(*share_KSG.shape[:2], self.topology.nodes, -1).sum(axis=3)
        off_node_KWSN = np.log1p(-np.minimum(chance_KWS[..., None] * share_KSN[:, None], SURE))
        return Sums(rows_KWSG.sum(axis=2), active_KWG, absent_KWSG, off_node_KWSN)

    def seconds(self, sums: Sums, sent: Sent | None = None) -> tuple[Floats, Floats]:
        """Return the predicted time, and the same with a little of the mean over GPUs to search by; [...].

        ``sent`` are the copies of these sums, where they were counted on tokens.
        """
        hardware, expert = self.step.hardware, self.step.expert
        on_gpu = hardware.expert.seconds(sums.rows, sums.active, expert=expert)
        time_W, guide_W = on_gpu.max(axis=-1), on_gpu.mean(axis=-1)
        if not self.even:
            nvlink, rdma = self._copies(sums, sent)
            on_gpu = hardware.all_to_all(self.step.phase).seconds(
                rows=sums.rows, nvlink_copies=nvlink, rdma_copies=rdma, hidden=expert.hidden
            )
            time_W, guide_W = time_W + on_gpu.max(axis=-1), guide_W + on_gpu.mean(axis=-1)
        time: Floats = (time_W * self.part_W).sum(axis=-1)
        guide: Floats = time + MEAN_WEIGHT * (guide_W * self.part_W).sum(axis=-1)
        return time, guide

    def _copies(self, sums: Sums, sent: Sent | None) -> tuple[Floats, Floats]:
        links = Links(self.topology)
        if self._kernel_sends is Sends.PER_EXPERT:
            return links.once_per_expert(sums.flow)
        tokens = self.tokens_WS[..., None]
        copies, to_node = -np.expm1(sums.flow) * tokens, -np.expm1(sums.to_node) * tokens
        if sent is not None:
            in_step, known_W11 = self.step.tokens_per_gpu * self.topology.gpus, sent.known_W[:, None, None]
            copies = np.where(known_W11, sent.gpu_WSG * in_step, copies)
            to_node = np.where(known_W11, sent.node_WSN * in_step, to_node)
        return links.once_per_gpu(copies, to_node)

    @property
    def _kernel_sends(self) -> Sends:
        return self.step.hardware.all_to_all(self.step.phase).sends

    def shares(self, hosts_KG: Bools) -> Floats:
        """Return the share of source s's tokens that GPU g serves, float64 [K, S, G].

        The engine's rule: the own GPU where it can; else the first host in the node, if the node has some but not all
        of them; else all hosts alike (an independent formulation of :mod:`placement.dispatch`).
        """
        gpus, nodes, local = self.topology.gpus, self.topology.nodes, self.topology.gpus_per_node
        hosts_KNg = hosts_KG.reshape(-1, nodes, local)
        replicas_K = hosts_KG.sum(axis=1)
        spread_KSG = np.repeat((hosts_KG / replicas_K[:, None])[:, None], gpus, axis=1)
        if self.even:
            return spread_KSG
        held_KN = hosts_KNg.sum(axis=2)
        some_KN = (held_KN > 0) & (held_KN < replicas_K[:, None])
        first_KNg = hosts_KNg & (np.cumsum(hosts_KNg, axis=2) == 1)
        own_node_NG = self.topology.node_of_gpu_G == np.arange(nodes)[:, None]
        first_KNG = first_KNg.reshape(-1, 1, gpus) & own_node_NG
        node_S = self.topology.node_of_gpu_G
        shares_KSG = np.where(some_KN[:, node_S, None], first_KNG[:, node_S], spread_KSG)
        return np.where(hosts_KG[:, :, None], np.eye(gpus, dtype=bool), shares_KSG).astype(np.float64)


def layer_times(problem: Problem, step: Step, layer: int) -> LayerTimes:
    """Take one MoE layer of a problem."""
    demand, gpus = problem.demand, problem.topology.gpus
    tokens_WSE = demand.tokens_WLSE[:, layer].astype(np.float64)
    routed_WS = tokens_WSE.sum(axis=2)
    choices_WSE = np.divide(
        tokens_WSE * step.top_k, routed_WS[..., None], out=np.zeros_like(tokens_WSE), where=routed_WS[..., None] > 0
    )
    routed_W1 = routed_WS.sum(axis=1, keepdims=True)
    tokens_WS = np.divide(routed_WS, routed_W1, out=np.zeros_like(routed_WS), where=routed_W1 > 0)
    tokens_WS *= step.tokens_per_gpu * gpus
    if demand.sources == "uniform":
        choices_WSE = np.repeat(choices_WSE, gpus, axis=1)
        tokens_WS = np.repeat(tokens_WS / gpus, gpus, axis=1)
    all_W = demand.tokens_WLE[:, list(demand.moe_layers)].sum(axis=(1, 2)).astype(np.float64)
    # A window in which this layer rests costs no layer anything that a layout could change.
    part_W = np.where(routed_W1[:, 0] > 0, all_W / all_W.sum(), 0.0)
    return LayerTimes(
        choices_EWS=np.ascontiguousarray(choices_WSE.transpose(2, 0, 1)),
        tokens_WS=tokens_WS,
        part_W=part_W,
        step=step,
        topology=problem.topology,
        even=problem.dispatch is Dispatch.EVEN,
    )
