"""Every layout of tiny problems, each scored by sending its tokens one by one.

Nothing of ``placement`` but the value types is used here: the dispatch rules are written down again, from the
engine's behaviour, in the slowest and plainest way.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.topology import Topology

PARTS = 840
"""A token is cut into this many parts (a multiple of 1 to 8), so that even splits stay whole numbers."""


@dataclass(frozen=True)
class TinyProblem:
    demand: Demand
    topology: Topology
    slots_per_gpu: int
    dispatch: Dispatch

    def tokens_from(self, window: int, layer: int, gpu: int, expert: int) -> int:
        """Tokens that a GPU sends; a uniform count is sent by every GPU, which leaves all shares as they are."""
        source = gpu if self.demand.sources == "measured" else 0
        return int(self.demand.tokens_WLSE[window, layer, source, expert])


@dataclass(frozen=True)
class BestOfAll:
    """The best that any layout reaches, each figure by itself."""

    layouts: int
    local_gpu: float
    local_node: float
    imbalance: float
    max_load_WL: np.ndarray
    """Smallest largest load by window and layer, in tokens."""


def all_layouts(experts: int, topology: Topology, slots_per_gpu: int) -> list[tuple[tuple[int, ...], ...]]:
    """List the layouts of one layer: the experts of every GPU, duplicates on a GPU included.

    The order of slots inside a GPU is left out: dispatch never looks at it, as the first of several slots on one
    GPU is on that GPU whichever it is.
    """
    one_gpu = list(itertools.combinations_with_replacement(range(experts), slots_per_gpu))
    return [
        layout
        for layout in itertools.product(one_gpu, repeat=topology.gpus)
        if set(itertools.chain.from_iterable(layout)) == set(range(experts))
    ]


def layouts_without_duplicates(
    experts: int, topology: Topology, slots_per_gpu: int
) -> list[tuple[tuple[int, ...], ...]]:
    """List the layouts of one layer in which no GPU holds an expert twice."""
    return [
        layout
        for layout in itertools.product(itertools.combinations(range(experts), slots_per_gpu), repeat=topology.gpus)
        if set(itertools.chain.from_iterable(layout)) == set(range(experts))
    ]


@dataclass(frozen=True)
class Reachable:
    """Figures of all layouts without duplicates, one row each; rows that are equal are kept once."""

    local_gpu_X: np.ndarray
    local_node_X: np.ndarray
    imbalance_XW: np.ndarray
    """Windows with demand only."""

    @property
    def imbalance(self) -> float:
        return float(self.imbalance_XW.max(axis=1).min())

    def best_local(self, local_X: np.ndarray, *, cap: float) -> float:
        """Largest of ``local_X`` among layouts with no window above the cap."""
        return float(local_X[self.imbalance_XW.max(axis=1) <= cap].max())


def reachable(problem: TinyProblem) -> Reachable:
    """Score every layout without duplicates, all combinations of layers."""
    demand, topology = problem.demand, problem.topology
    layouts = layouts_without_duplicates(demand.experts, topology, problem.slots_per_gpu)
    rows_XF = np.zeros((1, 2 + demand.windows), dtype=np.int64)
    for layer in range(demand.layers):
        scores = [(gpu, node, *loads_W) for gpu, node, loads_W in _score_layer(problem, layer, layouts)]
        layer_XF = np.unique(np.array(scores), axis=0)
        rows_XF = np.unique((rows_XF[:, None] + layer_XF[None]).reshape(-1, rows_XF.shape[1]), axis=0)
    sent = 1 if demand.sources == "measured" else topology.gpus
    mean_W = PARTS * sent * demand.tokens_WLE.sum(axis=(1, 2)) / topology.gpus
    busy_W = mean_W > 0
    total = PARTS * sent * demand.total_tokens
    return Reachable(rows_XF[:, 0] / total, rows_XF[:, 1] / total, rows_XF[:, 2:][:, busy_W] / mean_W[busy_W])


def serve_token(
    home: int, hosts: tuple[int, ...], topology: Topology, dispatch: Dispatch, drawn: random.Random
) -> Counter[int]:
    """Return how many parts of one token every GPU computes; ``hosts`` has a GPU per slot, in slot order."""
    per_node = topology.gpus // topology.nodes
    if dispatch is not Dispatch.EVEN:
        if home in hosts:
            return Counter({home: PARTS})
        near = [gpu for gpu in hosts if gpu // per_node == home // per_node]
        if 0 < len(near) < len(hosts):
            return Counter({near[0]: PARTS})
    if dispatch is Dispatch.NEAREST_STATIC:
        return Counter({drawn.choice(hosts): PARTS})
    parts: Counter[int] = Counter()
    for gpu in hosts:
        parts[gpu] += PARTS // len(hosts)
    return parts


def best_of_all_layouts(problem: TinyProblem) -> BestOfAll:
    """Score every layout of every layer; layers are independent but for the imbalance of a window."""
    demand, topology = problem.demand, problem.topology
    layouts = all_layouts(demand.experts, topology, problem.slots_per_gpu)
    best_gpu = best_node = 0
    max_loads: list[np.ndarray] = []  # per layer [layouts, W]
    for layer in range(demand.layers):
        scores = _score_layer(problem, layer, layouts)
        best_gpu += max(gpu for gpu, _, _ in scores)
        best_node += max(node for _, node, _ in scores)
        max_loads.append(np.unique(np.array([loads_W for _, _, loads_W in scores]), axis=0))
    # In parts of a token of every GPU; back to the unit of the demand.
    sent = 1 if demand.sources == "measured" else topology.gpus
    total = PARTS * sent * demand.total_tokens
    mean_W = PARTS * sent * demand.tokens_WLE.sum(axis=(1, 2)) / topology.gpus
    return BestOfAll(
        layouts=len(layouts) ** demand.layers,
        local_gpu=best_gpu / total,
        local_node=best_node / total,
        imbalance=_best_worst_window(max_loads, mean_W),
        max_load_WL=np.array([loads.min(axis=0) for loads in max_loads]).T / (PARTS * sent),
    )


def _score_layer(
    problem: TinyProblem, layer: int, layouts: list[tuple[tuple[int, ...], ...]]
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return for every layout parts served on the home GPU, in the home node, and the largest load by window."""
    served: dict[tuple[int, tuple[int, ...]], tuple[int, int, np.ndarray]] = {}
    scores = []
    for layout in layouts:
        slots = [(gpu, expert) for gpu, experts in enumerate(layout) for expert in experts]
        gpu_parts = node_parts = 0
        load_WG = np.zeros((problem.demand.windows, problem.topology.gpus), dtype=np.int64)
        for expert in range(problem.demand.experts):
            hosts = tuple(gpu for gpu, held in slots if held == expert)
            if (expert, hosts) not in served:
                served[expert, hosts] = _serve_expert(problem, layer, expert, hosts)
            on_gpu, in_node, expert_load_WG = served[expert, hosts]
            gpu_parts += on_gpu
            node_parts += in_node
            load_WG += expert_load_WG
        scores.append((gpu_parts, node_parts, tuple(load_WG.max(axis=1).tolist())))
    return scores


def _serve_expert(problem: TinyProblem, layer: int, expert: int, hosts: tuple[int, ...]) -> tuple[int, int, np.ndarray]:
    topology = problem.topology
    per_node = topology.gpus // topology.nodes
    on_gpu = in_node = 0
    load_WG = np.zeros((problem.demand.windows, topology.gpus), dtype=np.int64)
    for home in range(topology.gpus):
        for window in range(problem.demand.windows):
            # A static table is drawn once per rank, not once per token.
            drawn = random.Random(f"{expert} {hosts} {home}")
            served = serve_token(home, hosts, topology, problem.dispatch, drawn)
            for _ in range(problem.tokens_from(window, layer, home, expert)):
                for gpu, parts in served.items():
                    load_WG[window, gpu] += parts
                    on_gpu += parts * (gpu == home)
                    in_node += parts * (gpu // per_node == home // per_node)
    return on_gpu, in_node, load_WG


def _best_worst_window(max_loads: list[np.ndarray], mean_W: np.ndarray) -> float:
    """Return the smallest worst-window imbalance over all combinations of the layers' layouts."""
    sums_XW = max_loads[0]
    for loads_XW in max_loads[1:]:
        sums_XW = np.unique((sums_XW[:, None, :] + loads_XW[None, :, :]).reshape(-1, len(mean_W)), axis=0)
    busy_W = mean_W > 0
    return float((sums_XW[:, busy_W] / mean_W[busy_W]).max(axis=1).min())
