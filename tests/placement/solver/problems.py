"""Random problems for the solver's tests: every shape of demand that has ever been special, in small sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import LocalScope, Objective, Problem
from placement.topology import Topology

MOST_EXPERTS, MOST_SLOTS_PER_GPU = 6, 4
OBJECTIVES = (Objective.LOCALITY, Objective.BALANCE, Objective.TRAFFIC)
"""Those that need nothing but counts; step-time needs hardware and has tests of its own."""

CAPS = (1.0, 1.05, 1.2, 2.0)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw a problem of one or two nodes, with dense layers, idle experts, one hot expert, idle windows among it."""
    topology = draw(
        st.sampled_from([Topology(1), Topology(2), Topology(3), Topology(4), Topology(2, 2), Topology(4, 2)])
    )
    experts = draw(st.integers(1, MOST_EXPERTS))
    # From one slot per expert (also E = G) to all experts on every GPU (S = E).
    fewest = -(-experts // topology.gpus)
    slots_per_gpu = draw(st.integers(fewest, max(fewest, min(experts, MOST_SLOTS_PER_GPU))))
    problem = Problem(
        draw(demands(topology=topology, experts=experts)),
        topology,
        slots_per_gpu,
        objective=draw(st.sampled_from(OBJECTIVES)),
        local_scope=draw(st.sampled_from(LocalScope)),
        max_imbalance=draw(st.sampled_from(CAPS)),
        dispatch=draw(st.sampled_from(Dispatch)),
    )
    if draw(st.booleans()):
        return problem
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return replace(problem, current=random_layout(problem, generator))


@st.composite
def demands(draw: st.DrawFn, *, topology: Topology, experts: int) -> Demand:
    windows, layers = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    measured = draw(st.booleans())
    shape = (windows, layers, topology.gpus if measured else 1, experts)
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    match draw(st.sampled_from(["any", "equal", "hot", "idle experts", "huge"])):
        case "any":
            tokens = generator.integers(0, 50, shape)
        case "equal":
            tokens = np.full(shape, 7)
        case "hot":
            tokens = generator.integers(0, 3, shape)
            tokens[..., 0] += 1000
        case "idle experts":
            tokens = generator.integers(1, 50, shape) * (generator.random(experts) < 0.5)
        case _:
            tokens = generator.integers(0, 2**45, shape)
    tokens[:, generator.random(layers) < 0.25] = 0
    tokens[generator.random((windows, layers)) < 0.15] = 0
    if windows > 1 and draw(st.booleans()):
        tokens[0] = 0
    tokens[-1, -1, -1, -1] += 1
    names = tuple(f"window {index}" for index in range(windows))
    return Demand(tokens, "measured" if measured else "uniform", names)


def random_layout(problem: Problem, generator: np.random.Generator) -> Layout:
    """Draw a layout that fits the problem, no expert twice on a GPU, slots in any order."""
    rows = [random_row(problem, generator) for _ in range(problem.demand.layers)]
    return Layout(np.stack(rows), gpus=problem.topology.gpus, experts=problem.demand.experts)


def random_row(problem: Problem, generator: np.random.Generator) -> np.ndarray:
    """Deal every expert round the GPUs, fill up with what each GPU lacks, and shuffle each GPU's slots."""
    experts, gpus, room = problem.demand.experts, problem.topology.gpus, problem.slots_per_gpu
    ends = np.linspace(0, experts, gpus + 1).round().astype(int)
    dealt = generator.permutation(experts)
    held = [dealt[start:end].tolist() for start, end in pairwise(ends)]
    for experts_held in held:
        lacking = np.setdiff1d(np.arange(experts), experts_held)
        experts_held.extend(generator.permutation(lacking)[: room - len(experts_held)].tolist())
    return np.concatenate([generator.permutation(experts_held) for experts_held in held])
