"""Slot p holds expert p mod E: what an engine starts with when nobody plans."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.layout import Layout
from placement.problem import Problem


def trivial(problem: Problem, *, seed: int = 0) -> Layout:
    """Return the layout of SGLang's ``--init-expert-location trivial``, the same in every layer.

    Neighbouring slots hold different experts, so no GPU holds one twice as long as a GPU has no more slots
    than there are experts. The seed is not used.

    Source: sglang ``srt/eplb/expert_location.py``, ``init_trivial``.
    """
    slots_LP = np.tile(trivial_row(problem), (problem.demand.layers, 1))
    return Layout(slots_LP, gpus=problem.topology.gpus, experts=problem.demand.experts)


def trivial_row(problem: Problem) -> npt.NDArray[np.int32]:
    """Return the expert of every slot of one layer, int32 [P]."""
    return (np.arange(problem.slots) % problem.demand.experts).astype(np.int32)


def layout_with_trivial_idle_layers(slots_LP: npt.NDArray[np.integer], problem: Problem) -> Layout:
    """Build the layout of a map, with the trivial row in every layer that has no demand.

    Dense layers keep a row in the engine's map; a row made from zeros would only cause moves.
    """
    idle_L = ~np.isin(np.arange(problem.demand.layers), problem.demand.moe_layers)
    kept_LP = np.where(idle_L[:, None], trivial_row(problem)[None, :], slots_LP)
    return Layout(kept_LP.astype(np.int32), gpus=problem.topology.gpus, experts=problem.demand.experts)
