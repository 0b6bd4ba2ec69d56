"""Layouts of all layers with the figures that choosing between them needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placement.solver.instance import Floats, Instance, Ints
from placement.solver.placing import Placing, Slots


@dataclass(frozen=True, eq=False)
class Plans:
    """One layout per layer.

    Attributes
    ----------
    slots_LGP : ndarray
    local_L : ndarray
        Local share that each layer contributes; their sum is the plan's.
    peak_WL : ndarray
        Weighted peaks; their sum over layers is the window's imbalance (0 for a window without demand).
    """

    slots_LGP: Slots
    local_L: Floats
    peak_WL: Floats

    @property
    def local(self) -> float:
        return float(self.local_L.sum())

    @property
    def imbalance(self) -> float:
        """The worst window's."""
        return float(self.peak_WL.sum(axis=1).max())

    def cost_L(self, price_WL: Floats, local_weight: float) -> Floats:
        """Return price x peak - local_weight x local per layer. ``price_WL`` includes the layers' weights."""
        cost_L: Floats = (price_WL * self.peak_WL).sum(axis=0) - local_weight * self.local_L
        return cost_L


def plans_of(instance: Instance, slots_LGP: Slots) -> Plans:
    """Work out the figures of a layout from its slots alone."""
    placing = Placing(instance, slots_LGP)
    return Plans(placing.slots_LGP, instance.local_of(placing.hosts_LEG), instance.weight_WL * placing.peaks())


def combine(columns: Sequence[Plans], chosen_L: Ints) -> Plans:
    """Take every layer from the column chosen for it."""
    layer_L = np.arange(len(chosen_L))
    return Plans(
        np.stack([plans.slots_LGP for plans in columns])[chosen_L, layer_L],
        np.stack([plans.local_L for plans in columns])[chosen_L, layer_L],
        np.stack([plans.peak_WL for plans in columns])[chosen_L, :, layer_L].T,
    )
