"""A problem's MoE layers in the units of the search: mean GPU load 1, shares of all demand, windows in front.

Legend of the shape letters in this package: W windows, L MoE layers, E experts, G GPUs, N nodes, S source GPUs
(1 stands for uniform sources), P slots of one GPU, Q pairs of GPUs, K picked (layer, expert) cells, M sites
that count as local (GPUs or nodes; 1 where all are worth the same), C candidate layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.problem import LocalScope, Problem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Instance:
    """What the search needs of a problem; a batch of layers is an instance too (:meth:`take`).

    All figures are quotients of counts, so demand multiplied by any factor gives the same instance.

    Attributes
    ----------
    demand_WLES : ndarray
        float64 [W, L, E, S], tokens over the mean GPU load of their layer and window. S is 1 for uniform
        sources and then holds what each of the G sources sends.
    total_WLE : ndarray
        The same summed over all sources.
    weight_WL : ndarray
        A layer's part of its window's mean load, summing to 1 over the layers of the problem. A window's
        imbalance is ``sum_l weight * max_g load``.
    value_LEM : ndarray
        Share of all demand (all windows and layers) that becomes local when expert e is on site m.
    tokens_W : ndarray
        float64 [W], tokens of every window, all layers together, over the greatest common divisor of all counts:
        ``weight * load * tokens / gpus`` is a whole load again, for the exact models.
    gpus, nodes, slots_per_gpu : int
    even : bool
        Every replica takes the same load: true for ``even`` dispatch, and for ``nearest-dynamic`` with
        uniform sources on one node, where the G - n sources without the expert split evenly over n replicas.
    scope : LocalScope
        Which sites ``value_LEM`` is about.
    staying_LEG : ndarray or None
        What it is worth, in local share, that expert e is on GPU g, whatever it serves there: a price on moves is
        paid to experts that stay where they are. None where moves are free.
    variation_LE : ndarray or None
        What it costs, in local share, that an expert has one replica; n replicas cost the n-th part. Hedging sets it,
        see :mod:`placement.solver.hedging`.
    """

    demand_WLES: Floats
    total_WLE: Floats
    weight_WL: Floats
    value_LEM: Floats
    tokens_W: Floats
    gpus: int
    nodes: int
    slots_per_gpu: int
    even: bool
    scope: LocalScope
    staying_LEG: Floats | None = None
    variation_LE: Floats | None = None

    @property
    def windows(self) -> int:
        return int(self.total_WLE.shape[0])

    @property
    def layers(self) -> int:
        return int(self.total_WLE.shape[1])

    @property
    def experts(self) -> int:
        return int(self.total_WLE.shape[2])

    @property
    def slots(self) -> int:
        return self.gpus * self.slots_per_gpu

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes

    def take(self, layers: slice | Ints) -> Instance:
        """Return the instance of some layers; weights and values keep their meaning for the whole problem."""
        return replace(
            self,
            demand_WLES=self.demand_WLES[:, layers],
            total_WLE=self.total_WLE[:, layers],
            weight_WL=self.weight_WL[:, layers],
            value_LEM=self.value_LEM[layers],
            staying_LEG=None if self.staying_LEG is None else self.staying_LEG[layers],
            variation_LE=None if self.variation_LE is None else self.variation_LE[layers],
        )

    def loads_of(self, layer_K: Ints, expert_K: Ints, hosts_KG: Bools) -> Floats:
        """Return the load that experts put on every GPU when hosted so; float64 [W, K, G].

        Even: total / replicas on each host. Nearest: a source serves itself where it can. Otherwise the first
        host in its node serves it, if the node has some but not all of the replicas; else all replicas share
        it (:mod:`placement.dispatch` states the engine's rule; this is an independent formulation).
        """
        replicas_K = hosts_KG.sum(axis=1)
        if self.even:
            each_WK = self.total_WLE[:, layer_K, expert_K] / replicas_K
            return np.asarray(each_WK[:, :, None] * hosts_KG)
        if self.demand_WLES.shape[3] > 1:
            return self._nearest(self.demand_WLES[:, layer_K, expert_K], hosts_KG, replicas_K)
        # Uniform sources: the pattern is the same in all windows, each source sends one unit of it.
        pattern_1KG = self._nearest(np.ones((1, len(layer_K), self.gpus)), hosts_KG, replicas_K)
        loads_WKG: Floats = self.demand_WLES[:, layer_K, expert_K] * pattern_1KG
        return loads_WKG

    def _nearest(self, sent_WKG: Floats, hosts_KG: Bools, replicas_K: Ints) -> Floats:
        own_WKG = sent_WKG * hosts_KG
        by_node = (self.nodes, self.gpus_per_node)
        abroad_WKN = (sent_WKG - own_WKG).reshape(len(sent_WKG), -1, *by_node).sum(axis=3)
        hosts_KNg = hosts_KG.reshape(-1, *by_node)
        held_KN = hosts_KNg.sum(axis=2)
        keeps_KN = (held_KN > 0) & (held_KN < replicas_K[:, None])
        shared_WK = np.where(keeps_KN, 0.0, abroad_WKN).sum(axis=2) / replicas_K
        loads_WKG: Floats = own_WKG + hosts_KG * shared_WK[:, :, None]
        if self.nodes > 1 and keeps_KN.any():
            first_KNg = hosts_KNg & (np.cumsum(hosts_KNg, axis=2) == 1)
            kept_WKN = np.where(keeps_KN, abroad_WKN, 0.0)
            loads_WKG += (first_KNg * kept_WKN[..., None]).reshape(loads_WKG.shape)
        return loads_WKG

    def local_of(self, hosts_LEG: Bools) -> Floats:
        """Return the local share that every layer contributes, with the worth of what stays; float64 [L].

        What single replicas cost is taken off.
        """
        if self.scope is LocalScope.NODE:
            by_node = hosts_LEG.reshape(*hosts_LEG.shape[:2], self.nodes, self.gpus_per_node)
            sites_LEM = by_node.any(axis=3)
        else:
            sites_LEM = hosts_LEG
        if self.value_LEM.shape[2] == 1:
            sites_LEM = sites_LEM.sum(axis=2, keepdims=True)
        local_L: Floats = (self.value_LEM * sites_LEM).sum(axis=(1, 2))
        if self.staying_LEG is not None:
            local_L = local_L + (self.staying_LEG * hosts_LEG).sum(axis=(1, 2))
        if self.variation_LE is not None:
            local_L = local_L - (self.variation_LE / hosts_LEG.sum(axis=2)).sum(axis=1)
        return local_L


def instance_of(problem: Problem) -> Instance:
    """Build the instance of a problem's MoE layers (those with any demand).

    ``nearest-static`` is planned with the expectation of ``nearest-dynamic``. Under ``even`` dispatch nothing
    is local, so all values are 0.
    """
    demand, topology = problem.demand, problem.topology
    layers = list(demand.moe_layers)
    tokens_WLES = demand.tokens_WLSE[:, layers].transpose(0, 1, 3, 2)
    tokens_WLE = demand.tokens_WLE[:, layers]
    tokens_WL = tokens_WLE.sum(axis=2, dtype=np.float64)
    total_WLE = _quotient(tokens_WLE, tokens_WL[:, :, None]) * topology.gpus
    uniform = demand.sources == "uniform"
    even = problem.dispatch is Dispatch.EVEN or (uniform and topology.nodes == 1)
    if even:
        demand_WLES = np.zeros((*total_WLE.shape, 0))
    elif uniform:
        demand_WLES = total_WLE[..., None] / topology.gpus
    else:
        demand_WLES = np.ascontiguousarray(_quotient(tokens_WLES, tokens_WL[:, :, None, None]) * topology.gpus)
    return Instance(
        demand_WLES=demand_WLES,
        total_WLE=total_WLE,
        weight_WL=_quotient(tokens_WL, tokens_WL.sum(axis=1, keepdims=True)),
        value_LEM=_values(demand, problem, layers),
        # The exact models' units: in the largest unit that all counts share, whatever factor they were recorded with.
        tokens_W=tokens_WL.sum(axis=1) / np.gcd.reduce(demand.tokens_WLSE, axis=None),
        gpus=topology.gpus,
        nodes=topology.nodes,
        slots_per_gpu=problem.slots_per_gpu,
        even=even,
        scope=problem.local_scope,
    )


def _values(demand: Demand, problem: Problem, layers: list[int]) -> Floats:
    tokens_LSE = demand.tokens_WLSE[:, layers].sum(axis=0)
    nodes = problem.topology.nodes
    sites = nodes if problem.local_scope is LocalScope.NODE else problem.topology.gpus
    if problem.dispatch is Dispatch.EVEN:
        return np.zeros((len(layers), demand.experts, 1))
    total = float(demand.total_tokens)
    if demand.sources == "uniform":
        return np.asarray(tokens_LSE.transpose(0, 2, 1) / total / sites)
    per_site_LME = tokens_LSE.reshape(len(layers), sites, -1, demand.experts).sum(axis=2)
    return np.ascontiguousarray(per_site_LME.transpose(0, 2, 1) / total)


def _quotient(part: npt.NDArray[np.number], whole: Floats) -> Floats:
    """Divide, 0 where the whole is 0 (a layer or window without demand)."""
    quotient: Floats = np.zeros(np.broadcast_shapes(part.shape, whole.shape))
    np.divide(part, whole, out=quotient, where=whole > 0)
    return quotient
