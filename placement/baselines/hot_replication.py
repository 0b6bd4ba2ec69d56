"""The hottest experts on every GPU, the others once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placement.baselines.packing import pack_heaviest_first
from placement.baselines.trivial import layout_with_trivial_idle_layers
from placement.layout import Layout
from placement.problem import Problem


def hot_replication(problem: Problem, *, seed: int = 0) -> Layout:
    """Return the layout with the K hottest experts on every GPU, for the largest K that fits.

    The others get one slot each, packed heaviest first onto the least loaded GPU that has room. The few slots
    left over (fewer than GPUs - 1) go to the next hottest experts on GPUs that lack them. Heat is demand
    summed over windows and sources; of equally hot experts the lower id comes first. The seed is not used.
    """
    tokens_LE = problem.demand.tokens_WLE.sum(axis=0)
    layers, experts = tokens_LE.shape
    gpus, slots_per_gpu = problem.topology.gpus, problem.slots_per_gpu
    everywhere = hottest_that_fit(experts=experts, gpus=gpus, slots=problem.slots)
    hottest_first_LE = np.argsort(-tokens_LE, axis=1, kind="stable")

    # Step 1: the K hottest take the first K slots of every GPU. [L, G, slots_per_gpu], -1 is empty
    slots_LGP = np.full((layers, gpus, slots_per_gpu), -1, dtype=np.int64)
    slots_LGP[:, :, :everywhere] = hottest_first_LE[:, None, :everywhere]

    # Step 2: single copies of the others. [L, E - K]
    single_LI = hottest_first_LE[:, everywhere:]
    weight_LI = np.take_along_axis(tokens_LE, single_LI, axis=1).astype(np.float64)
    gpu_LI, rank_LI = pack_heaviest_first(weight_LI, packs=gpus, room=slots_per_gpu - everywhere)
    slots_LGP[np.arange(layers)[:, None], gpu_LI, everywhere + rank_LI] = single_LI

    # Step 3: what is left over, layer by layer.
    for slots_GP, order_E in zip(slots_LGP, hottest_first_LE[:, everywhere:], strict=True):
        _fill_left_over_slots(slots_GP, order_E)
    return layout_with_trivial_idle_layers(slots_LGP.reshape(layers, -1), problem)


def hottest_that_fit(*, experts: int, gpus: int, slots: int) -> int:
    """Return how many experts can be on every GPU while every other one still finds a slot.

    K experts everywhere need ``K * gpus + (experts - K)`` slots.
    """
    return experts if gpus == 1 else (slots - experts) // (gpus - 1)


def _fill_left_over_slots(slots_GP: npt.NDArray[np.int64], order_E: npt.NDArray[np.integer]) -> None:
    """Give the empty slots of one layer, in place, to the experts in ``order_E`` on GPUs that lack them."""
    for expert in order_E:
        room_G = (slots_GP < 0).any(axis=1)
        if not room_G.any():
            return
        takers = np.flatnonzero(room_G & ~(slots_GP == expert).any(axis=1))
        slots_GP[takers, (slots_GP[takers] < 0).argmax(axis=1)] = expert
