"""What the exact models of a layer share: the layer's numbers and what an encoding gives back.

Two encodings: :mod:`gpu_contents` (all replicas of an expert carry the same load, all GPUs are alike, few
experts) and :mod:`host_sets` (any dispatch, few GPUs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LayerNumbers:
    """One layer for the exact models.

    Attributes
    ----------
    load_WE : ndarray
        float64 [W, E], load of an expert, all replicas together, in load units: chosen so that the load of a
        replica is a whole number where 64 bits allow it.
    value_EM : ndarray
        float64 [E, M], worth of expert e on site m in worth units; M is the number of GPUs, or of nodes.
    set_load_WESG : ndarray or None
        float64 [W, E, sets, G], load on GPU g when e is on the GPUs of a set (:func:`host_sets.sets_of`);
        None where every replica takes the same load and all sites are worth the same.
    gpus, slots_per_gpu : int
    """

    load_WE: Floats
    value_EM: Floats
    set_load_WESG: Floats | None
    gpus: int
    slots_per_gpu: int

    @property
    def windows(self) -> int:
        return int(self.load_WE.shape[0])

    @property
    def experts(self) -> int:
        return int(self.load_WE.shape[1])

    def of_windows(self, windows: npt.NDArray[np.int64]) -> LayerNumbers:
        """Return the layer with some of its windows only."""
        sets = self.set_load_WESG
        return replace(self, load_WE=self.load_WE[windows], set_load_WESG=None if sets is None else sets[windows])


@dataclass(frozen=True, eq=False)
class LayerVariables:
    """What an encoding gives.

    Attributes
    ----------
    value : expression
        Worth of the hosting, what locality maximises.
    read_hosts : callable
        Turns a solver with a solution into hosts, bool [E, G].
    """

    value: cp_model.LinearExpr
    read_hosts: Callable[[cp_model.CpSolver], Bools]


def whole(value: float) -> int:
    """Round a load down to a whole number of units; a value that is whole but for rounding noise stays."""
    return int(np.floor(value + 2.0**-6))


def whole_worth(value: float) -> int:
    """Round a worth up likewise: with loads down and worth up inexact numbers only loosen, so bounds hold."""
    return int(np.ceil(value - 2.0**-6))
