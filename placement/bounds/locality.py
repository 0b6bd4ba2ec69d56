"""Upper bounds on the share of demand that is served where the token already is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.bounds.hosting import copies_filling_the_hottest, hosts_of_copies, most_hosted_tokens
from placement.demand import Demand
from placement.errors import BadOption, SourceCountMismatch
from placement.slots import check_slots_per_gpu, smallest_slots_per_gpu
from placement.topology import Topology

FLOW_RELAXATION = "b-matching of experts to {site}s (min-cost flow), no balance limit"
COUNT_RELAXATION = "replica counts, hottest experts on every {site} (closed form), no balance limit"


@dataclass(frozen=True)
class LocalityBound:
    """An upper bound on ``local_gpu`` or ``local_node``, and hosts that reach it.

    Attributes
    ----------
    share : float
        No layout serves a larger share of the demand, all windows together, on the home GPU (or node).
    tokens_L : ndarray
        float64 [L], the most tokens that can be served there in every layer.
    hosts_LEG : ndarray
        bool [L, E, G], for every layer hosts that reach ``tokens_L``: no expert twice on a GPU, exactly
        ``slots_per_gpu`` experts on each, every expert somewhere. Balance was not looked at.
    relaxation : str
        The problem whose optimum ``share`` is.
    """

    share: float
    tokens_L: npt.NDArray[np.float64]
    hosts_LEG: npt.NDArray[np.bool_]
    relaxation: str


def local_gpu_bound(demand: Demand, topology: Topology, slots_per_gpu: int) -> LocalityBound:
    """Bound ``local_gpu`` from above; without a limit on imbalance the bound is reached.

    Relaxation: balance, windows and dispatch are dropped. What is left is, per layer, a b-matching of experts
    to GPUs: solved by a min-cost flow for measured sources, in closed form for uniform ones.

    Proof. Under every dispatch rule a token can be served on its home GPU only if that GPU holds its expert,
    so ``local_gpu`` is at most the share of demand that is hosted at home. That share sees only which
    experts a GPU holds: at most ``slots_per_gpu`` different ones, and each expert somewhere. (A duplicate
    wastes a slot: fewer different experts, and as tokens are >= 0 a fuller set is never worse. So layouts
    with duplicates are covered.) The b-matching maximises exactly this, window after window the same layout,
    hence on demand summed over windows. "Nearest" dispatch serves every token at home whose expert is there,
    so an optimum of the b-matching, read as a layout, meets the bound.

    Raises
    ------
    SourceCountMismatch, SlotsBelowExperts, RedundancyTooHigh
    """
    _check(demand, topology, slots_per_gpu)
    if demand.sources == "uniform":
        tokens_LE = demand.tokens_WLE.sum(axis=0)
        copies_LE = copies_filling_the_hottest(
            tokens_LE, held_LE=np.ones_like(tokens_LE), sites=topology.gpus, room=slots_per_gpu
        )
        return LocalityBound(
            *_share_of_copies(tokens_LE, copies_LE, sites=topology.gpus),
            hosts_LEG=hosts_of_copies(copies_LE, sites=topology.gpus),
            relaxation=COUNT_RELAXATION.format(site="GPU"),
        )
    tokens_LGE = demand.tokens_WLSE.sum(axis=0)
    share, tokens_L, hosted_LGE = _best_hosts(tokens_LGE, room=slots_per_gpu)
    return LocalityBound(share, tokens_L, hosted_LGE.transpose(0, 2, 1), FLOW_RELAXATION.format(site="GPU"))


def local_node_bound(demand: Demand, topology: Topology, slots_per_gpu: int) -> LocalityBound:
    """Bound ``local_node`` from above; without a limit on imbalance the bound is reached.

    Relaxation and proof as for :func:`local_gpu_bound`, with nodes as sites: a node holds at most
    ``slots_per_gpu * gpus_per_node`` different experts (and at most all of them). Further copies inside a node
    add nothing, so they are left out of the matching; where slots remain after every expert is in the node,
    ``hosts_LEG`` gives them to the node's hottest experts. A set of that size always fits on the node's GPUs
    without duplicates, so the bound is reached.

    Raises
    ------
    SourceCountMismatch, SlotsBelowExperts, RedundancyTooHigh
    """
    _check(demand, topology, slots_per_gpu)
    nodes, room = topology.nodes, min(demand.experts, slots_per_gpu * topology.gpus_per_node)
    tokens_LE = demand.tokens_WLE.sum(axis=0)
    if demand.sources == "uniform":
        copies_LE = copies_filling_the_hottest(tokens_LE, held_LE=np.ones_like(tokens_LE), sites=nodes, room=room)
        share, tokens_L = _share_of_copies(tokens_LE, copies_LE, sites=nodes)
        hosted_LNE = hosts_of_copies(copies_LE, sites=nodes).transpose(0, 2, 1)
        tokens_LNE = np.broadcast_to(tokens_LE[:, None, :], hosted_LNE.shape)
        relaxation = COUNT_RELAXATION.format(site="node")
    else:
        tokens_LGE = demand.tokens_WLSE.sum(axis=0)
        tokens_LNE = tokens_LGE.reshape(demand.layers, nodes, topology.gpus_per_node, demand.experts).sum(axis=2)
        share, tokens_L, hosted_LNE = _best_hosts(tokens_LNE, room=room)
        relaxation = FLOW_RELAXATION.format(site="node")
    hosts_LEG = _hosts_inside_nodes(tokens_LNE, hosted_LNE, topology, slots_per_gpu)
    return LocalityBound(share, tokens_L, hosts_LEG, relaxation)


def fewest_slots_for_local_gpu(demand: Demand, topology: Topology, local_share: float) -> int:
    """Return the fewest slots per GPU whose bound on ``local_gpu`` reaches ``local_share``.

    No layout with fewer slots reaches the share; one more slot never lowers the bound, so halving finds it.
    With every expert on every GPU the share is 1, so there is always an answer.

    Raises
    ------
    BadOption
        The share is not within 0..1.
    """
    if not 0 <= local_share <= 1:
        raise BadOption(f"the local share asked for is {local_share}; shares lie between 0 and 1.")
    too_few = smallest_slots_per_gpu(experts=demand.experts, gpus=topology.gpus) - 1
    enough = demand.experts
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if local_gpu_bound(demand, topology, middle).share >= local_share:
            enough = middle
        else:
            too_few = middle
    return enough


def _check(demand: Demand, topology: Topology, slots_per_gpu: int) -> None:
    demand.require_not_empty()
    check_slots_per_gpu(experts=demand.experts, gpus=topology.gpus, slots_per_gpu=slots_per_gpu)
    sources = demand.tokens_WLSE.shape[2]
    if demand.sources == "measured" and sources != topology.gpus:
        raise SourceCountMismatch(
            f"demand was measured for {sources} source GPUs, the topology has {topology.gpus}; take a topology of "
            f"{sources} GPUs, or forget the sources."
        )


def _share_of_copies(
    tokens_LE: npt.NDArray[np.int64], copies_LE: npt.NDArray[np.int64], *, sites: int
) -> tuple[float, npt.NDArray[np.float64]]:
    """Return share and tokens [L] served at home when sources are uniform: sum_e tokens_e copies_e / sites."""
    tokens_L = (tokens_LE * (copies_LE / sites)).sum(axis=1)
    return min(1.0, float(tokens_L.sum() / tokens_LE.sum())), tokens_L


def _best_hosts(
    tokens_LME: npt.NDArray[np.int64], *, room: int
) -> tuple[float, npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Solve every layer's flow; layers without demand solve like the others, any hosts will do."""
    solved = [most_hosted_tokens(tokens_ME, room=room) for tokens_ME in tokens_LME]
    share = sum(tokens for tokens, _ in solved) / int(tokens_LME.sum())
    return share, np.array([float(tokens) for tokens, _ in solved]), np.stack([hosted_ME for _, hosted_ME in solved])


def _hosts_inside_nodes(
    tokens_LNE: npt.NDArray[np.int64], hosted_LNE: npt.NDArray[np.bool_], topology: Topology, slots_per_gpu: int
) -> npt.NDArray[np.bool_]:
    """Spread every node's experts over its GPUs; bool [L, E, G]."""
    inside = topology.gpus_per_node
    nodes_LEG = []
    for node in range(topology.nodes):
        copies_LE = copies_filling_the_hottest(
            tokens_LNE[:, node], held_LE=hosted_LNE[:, node].astype(np.int64), sites=inside, room=slots_per_gpu
        )
        nodes_LEG.append(hosts_of_copies(copies_LE, sites=inside))
    return np.concatenate(nodes_LEG, axis=2)
