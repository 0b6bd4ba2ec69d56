"""Experts on random slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.baselines.trivial import layout_with_trivial_idle_layers
from placement.layout import Layout
from placement.problem import Problem

RANDOM_SEEDS: tuple[int, ...] = (0, 1, 2, 3, 4)
"""The seeds whose median stands for "random" in comparisons."""


def random_placement(problem: Problem, *, seed: int = 0) -> Layout:
    """Return a random layout: every expert once, redundant slots to random experts, none twice on a GPU.

    A GPU has at most as many slots as there are experts, so an empty slot always finds an expert that its
    GPU lacks: nothing is drawn twice or repaired.
    """
    generator = np.random.default_rng(seed)
    layers, experts = problem.demand.layers, problem.demand.experts
    gpus, slots_per_gpu, slots = problem.topology.gpus, problem.slots_per_gpu, problem.slots

    # Step 1: deal every expert once onto shuffled slots; -1 marks the redundant ones. [L, P]
    dealt_P = np.where(np.arange(slots) < experts, np.arange(slots), -1)
    slots_LP = generator.permuted(np.tile(dealt_P, (layers, 1)), axis=1)

    # Step 2: shuffle, for every GPU, the experts that it lacks. [L, G, E]
    missing_LGE = _shuffled_missing_experts(slots_LP.reshape(layers, gpus, slots_per_gpu), experts, generator)

    # Step 3: the i-th empty slot of a GPU takes the i-th expert of that order. [L, G, slots_per_gpu]
    slots_LGP = slots_LP.reshape(layers, gpus, slots_per_gpu)
    empty_LGP = slots_LGP < 0
    order_LGP = np.cumsum(empty_LGP, axis=2) - 1
    drawn_LGP = np.take_along_axis(missing_LGE, np.maximum(order_LGP, 0), axis=2)
    filled_LP = np.where(empty_LGP, drawn_LGP, slots_LGP).reshape(layers, slots)
    return layout_with_trivial_idle_layers(filled_LP, problem)


def _shuffled_missing_experts(
    slots_LGP: npt.NDArray[np.integer], experts: int, generator: np.random.Generator
) -> npt.NDArray[np.intp]:
    """Order the experts of every GPU at random, those it holds already last; [L, G, E]."""
    layers, gpus, _ = slots_LGP.shape
    key_LGE = generator.random((layers, gpus, experts + 1))
    held_LGP = np.where(slots_LGP < 0, experts, slots_LGP)  # column E takes the marks of empty slots
    np.put_along_axis(key_LGE, held_LGP, np.inf, axis=2)
    return np.argsort(key_LGE[:, :, :experts], axis=2, kind="stable")
