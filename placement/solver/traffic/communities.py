"""A first layout from which experts are chosen together: communities of the co-activation graph, packed onto GPUs."""

from __future__ import annotations

import networkx as nx
import numpy as np

from placement.solver.instance import Bools, Floats, Instance
from placement.solver.traffic.layer_tokens import LayerTokens

RESOLUTION = 1.2
"""Of modularity: somewhat more and smaller communities than GPUs are easier to pack."""


def co_activation_EE(tokens: LayerTokens) -> Floats:
    """Return how many tokens have both experts; float64 [E, E], 0 on the diagonal."""
    chosen_TE = np.zeros((tokens.tokens, tokens.experts + 1), dtype=np.float32)
    chosen_TE[np.arange(tokens.tokens)[:, None], tokens.experts_TK] = 1.0
    together_EE: Floats = np.rint(chosen_TE[:, :-1].T @ chosen_TE[:, :-1]).astype(np.float64)
    np.fill_diagonal(together_EE, 0.0)
    return together_EE


def community_hosts(tokens: LayerTokens, instance: Instance, hosts_EG: Bools, *, seed: int) -> Bools:
    """Arrange a layer's replicas by communities; bool [E, G].

    Numbers of replicas stay those of ``hosts_EG``. Experts come community by community (Louvain; Blondel et al. 2008,
    doi:10.1088/1742-5468/2008/10/P10008), heaviest first; each replica goes where its expert is most often needed
    together with those there, among the GPUs with room whose load stays lowest otherwise.

    Parameters
    ----------
    instance : Instance
        Of this layer alone.
    """
    together_EE = co_activation_EE(tokens)
    # Beyond what two independent experts would share by their heat.
    heat_E = together_EE.sum(axis=1)
    expected_EE = np.outer(heat_E, heat_E) / max(heat_E.sum(), 1.0)
    graph = nx.Graph()
    graph.add_nodes_from(range(instance.experts))
    graph.add_weighted_edges_from(
        (int(a), int(b), float(together_EE[a, b])) for a, b in np.argwhere(np.triu(together_EE > expected_EE))
    )
    communities = nx.community.louvain_communities(graph, weight="weight", resolution=RESOLUTION, seed=seed)
    load_E = instance.total_WLE[:, 0].max(axis=0)
    replicas_E = hosts_EG.sum(axis=1)
    by_heat = sorted(communities, key=lambda group: (-load_E[sorted(group)].sum(), min(group)))
    order = [expert for group in by_heat for expert in sorted(group, key=lambda each: (-load_E[each], each))]
    # Experts with most replicas first: single ones fit anywhere.
    order.sort(key=lambda expert: -int(replicas_E[expert]))
    placed_EG = np.zeros_like(hosts_EG)
    free_G = np.full(instance.gpus, instance.slots_per_gpu)
    load_G = np.zeros(instance.gpus)
    for expert in order:
        item = load_E[expert] / replicas_E[expert]
        affinity_G = together_EE[expert] @ placed_EG
        for _ in range(int(replicas_E[expert])):
            open_G = (free_G > 0) & ~placed_EG[expert]
            if not open_G.any():
                return hosts_EG  # packed into a corner: the layout given is as good a start
            fits_G = open_G & (load_G + item <= max(1.0, load_G[open_G].min() + item))
            score_G = np.where(fits_G, affinity_G, -np.inf)
            gpu = int(score_G.argmax())
            placed_EG[expert, gpu] = True
            free_G[gpu] -= 1
            load_G[gpu] += item
    return placed_EG
