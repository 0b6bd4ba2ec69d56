"""The problem under the locality bounds: which sites (GPUs, or nodes) should host which experts.

Maximise the tokens whose expert is hosted at their home site, with every expert hosted at least once and
exactly ``room`` experts at every site:

    max sum_{m,e} tokens[m, e] x[m, e]   s.t.  sum_m x[m, e] >= 1,  sum_e x[m, e] = room,  x in {0, 1}

Its matrix is the incidence matrix of a bipartite graph, hence totally unimodular: the linear relaxation has
an integral optimum (Hoffman and Kruskal 1956, doi:10.1515/9781400881987-014), which a min-cost flow finds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from ortools.graph.python import min_cost_flow

COST_BITS = 46
"""Costs with more bits would overflow inside the flow solver, which multiplies them by the number of nodes."""


def most_hosted_tokens(tokens_ME: npt.NDArray[np.int64], *, room: int) -> tuple[int, npt.NDArray[np.bool_]]:
    """Solve the problem for one layer with its own demand at every site, exactly, in integers.

    The flow: every site sends ``room`` units over arcs of capacity 1 to the experts; every expert keeps one
    unit and passes up to M - 1 more on to a pool that takes the rest.

    Parameters
    ----------
    tokens_ME : ndarray
        int64 [M, E], tokens whose home is site m for expert e.
    room : int
        Experts per site, ``E / M <= room <= E``.

    Returns
    -------
    tokens : int
        The optimum. Counts of 2^46 and more (of their common unit) are rounded up to a power of two's
        multiples first, which keeps it an upper bound.
    hosted_ME : ndarray
        bool [M, E], hosts that reach it.
    """
    sites, experts = tokens_ME.shape
    # In the largest unit that all counts share: among equal optima, which one the flow ends at depends on its costs,
    # and the same traffic recorded several times must give the same hosts.
    unit = int(np.gcd.reduce(tokens_ME, axis=None)) or 1
    shift = max(0, int(tokens_ME.max() // unit).bit_length() - COST_BITS)
    cost_ME = -(-(tokens_ME // unit) >> shift)  # rounded up
    expert_node_E = sites + np.arange(experts)
    pool = sites + experts

    flow = min_cost_flow.SimpleMinCostFlow()
    hosting_arcs = flow.add_arcs_with_capacity_and_unit_cost(
        np.repeat(np.arange(sites), experts),
        np.tile(expert_node_E, sites),
        np.ones(sites * experts, dtype=np.int64),
        -cost_ME.ravel(),
    )
    flow.add_arcs_with_capacity_and_unit_cost(
        expert_node_E,
        np.full(experts, pool),
        np.full(experts, sites - 1),
        np.zeros(experts, dtype=np.int64),
    )
    supply = np.concatenate([np.full(sites, room), np.full(experts, -1), [experts - sites * room]])
    flow.set_nodes_supplies(np.arange(pool + 1), supply)
    status = flow.solve()
    if status != flow.OPTIMAL:
        raise RuntimeError(f"min-cost flow ended with {status.name} on {sites} sites x {experts} experts, room {room}")
    hosted_ME = np.asarray(flow.flows(hosting_arcs)).reshape(sites, experts) > 0
    optimum = (-int(flow.optimal_cost()) << shift) * unit
    return min(optimum, int(tokens_ME.sum())), hosted_ME


def copies_filling_the_hottest(
    tokens_LE: npt.NDArray[np.int64], *, held_LE: npt.NDArray[np.integer], sites: int, room: int
) -> npt.NDArray[np.int64]:
    """Return copies of every expert, int64 [L, E]: those held already, the rest to the hottest first.

    With the same demand at every site the problem depends on the number of copies only, each worth
    ``tokens / sites``: the best use of the room left is the hottest experts, up to one copy a site.

    Parameters
    ----------
    tokens_LE : ndarray
    held_LE : ndarray
        Copies that are fixed, [L, E], at most ``sites`` each and ``sites * room`` in all.
    sites, room : int
    """
    hottest_first_LE = np.argsort(-tokens_LE, axis=1, kind="stable")
    wanted_LE = sites - np.take_along_axis(held_LE, hottest_first_LE, axis=1)
    left_L = sites * room - held_LE.sum(axis=1)
    before_LE = np.cumsum(wanted_LE, axis=1) - wanted_LE
    given_LE = np.clip(left_L[:, None] - before_LE, 0, wanted_LE)
    copies_LE = held_LE.astype(np.int64)
    np.put_along_axis(copies_LE, hottest_first_LE, sites - wanted_LE + given_LE, axis=1)
    return copies_LE


def hosts_of_copies(copies_LE: npt.NDArray[np.int64], *, sites: int) -> npt.NDArray[np.bool_]:
    """Deal copies onto sites in turn, experts with most copies first; bool [L, E, M].

    The copies of one expert are neighbours in the deal and at most as many as sites, so they land on
    different sites; and every site gets the same number (McNaughton's wrap-around rule, 1959).
    """
    layers, experts = copies_LE.shape
    most_first_LE = np.argsort(-copies_LE, axis=1, kind="stable")
    count = int(copies_LE[0].sum())
    dealt_LP = np.repeat(most_first_LE.ravel(), np.take_along_axis(copies_LE, most_first_LE, axis=1).ravel())
    hosts_LEM = np.zeros((layers, experts, sites), dtype=np.bool_)
    hosts_LEM[np.arange(layers)[:, None], dealt_LP.reshape(layers, count), np.arange(count)[None, :] % sites] = True
    return hosts_LEM
