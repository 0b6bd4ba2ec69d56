"""Random problems that are small enough to try every layout."""

from __future__ import annotations

import numpy as np

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.topology import Topology
from tests.placement.bounds.brute_force import TinyProblem

# GPUs, nodes, slots per GPU, experts: at most about 3400 layouts a layer.
SHAPES = (
    (1, 1, 3, 3),
    (2, 1, 1, 2),
    (2, 1, 2, 3),
    (2, 1, 2, 4),
    (2, 1, 3, 3),
    (2, 1, 3, 5),
    (2, 2, 2, 3),
    (2, 2, 3, 4),
    (3, 1, 1, 2),
    (3, 1, 1, 3),
    (3, 1, 2, 2),
    (3, 1, 2, 3),
    (3, 1, 2, 4),
    (3, 1, 2, 5),
    (3, 3, 2, 4),
    (4, 2, 1, 3),
    (4, 2, 2, 3),
    (4, 4, 1, 4),
)


def tiny_problem(seed: int) -> TinyProblem:
    """Draw a problem: skewed, flat or tied counts, unused experts, idle layers and windows now and then."""
    generator = np.random.default_rng(seed)
    gpus, nodes, slots_per_gpu, experts = SHAPES[seed % len(SHAPES)]
    dispatch = list(Dispatch)[seed // len(SHAPES) % len(Dispatch)]
    sources = ("measured", "uniform")[int(generator.integers(2))]
    windows, layers = int(generator.integers(1, 4)), int(generator.integers(1, 3))
    shape = (windows, layers, gpus if sources == "measured" else 1, experts)
    tokens_WLSE = [
        generator.integers(0, 4, size=shape),
        generator.integers(5, 9, size=shape),
        np.minimum(generator.geometric(0.2, size=shape), 15) * generator.integers(0, 2, size=shape),
        np.minimum((10 / np.arange(1, experts + 1) ** generator.uniform(0.2, 2)), 10).astype(int)
        + generator.integers(0, 2, size=shape),
    ][int(generator.integers(4))]
    if generator.random() < 0.2:
        tokens_WLSE[:, 0] = 0
    if generator.random() < 0.1:
        tokens_WLSE[0] = 0
    tokens_WLSE[-1, -1, -1, -1] += 1
    demand = Demand(tokens_WLSE, sources, tuple(f"window {index}" for index in range(windows)))
    return TinyProblem(demand, Topology(gpus, nodes), slots_per_gpu, dispatch)
