"""Random layouts and demands for property tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from placement.demand import Demand
from placement.layout import Layout
from placement.topology import Topology


@dataclass(frozen=True)
class Instance:
    """A layout, a demand and a topology that fit together."""

    layout: Layout
    demand: Demand
    topology: Topology


@st.composite
def topologies(draw: st.DrawFn, *, most_nodes: int = 4) -> Topology:
    nodes = draw(st.integers(1, most_nodes))
    return Topology(nodes * draw(st.integers(1, 4)), nodes)


@st.composite
def layouts(draw: st.DrawFn, *, topology: Topology, layers: int, experts: int) -> Layout:
    """Draw any valid layout: every expert once, the other slots anything, so that repeats on a GPU happen."""
    fewest = -(-experts // topology.gpus)
    slots = topology.gpus * draw(st.integers(fewest, fewest + 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = [
        generator.permutation(np.concatenate([np.arange(experts), generator.integers(0, experts, slots - experts)]))
        for _ in range(layers)
    ]
    return Layout(np.stack(rows), gpus=topology.gpus, experts=experts)


@st.composite
def instances(draw: st.DrawFn, *, most_nodes: int = 4) -> Instance:
    """Draw measured or uniform demand with idle windows, dense layers and zero counts among it; never all zero."""
    topology = draw(topologies(most_nodes=most_nodes))
    windows, layers, experts = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 9))
    sources = draw(st.sampled_from([1, topology.gpus]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens = generator.integers(0, draw(st.sampled_from([2, 10, 100_000])), (windows, layers, sources, experts))
    tokens[:, generator.random(layers) < 0.3] = 0
    tokens[generator.random((windows, layers)) < 0.2] = 0
    tokens[0, -1, 0, 0] += 1
    kind = "measured" if sources == topology.gpus and draw(st.booleans()) else "uniform"
    if kind == "uniform":
        tokens = tokens.sum(axis=2, keepdims=True)
    demand = Demand(tokens, kind, tuple(f"w{index}" for index in range(windows)))
    layout = draw(layouts(topology=topology, layers=layers, experts=experts))
    return Instance(layout, demand, topology)
