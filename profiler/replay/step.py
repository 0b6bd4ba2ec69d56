"""One step as it was dispatched: what the recorder, the demand windows and the measured counters look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiler.replay.batching import Batch


@dataclass(frozen=True, eq=False)
class RoutedStep:
    """A batch with the expert and the slot of every (token, expert) pair.

    Attributes
    ----------
    index : int
        Step number since the engine's start, from 0.
    generation : int
        Layout generation the step ran with.
    ended_s : float
        Monotonic clock at its end.
    batch : Batch
    experts_LTK : ndarray
        int64 [L, T, K], logical experts; 0 where there is none.
    slots_LTK : ndarray
        int32 [L, T, K].
    present_LTK : ndarray
        bool [L, T, K], False where the token has no expert (dense layer, padding).
    """

    index: int
    generation: int
    ended_s: float
    batch: Batch
    experts_LTK: npt.NDArray[np.int64]
    slots_LTK: npt.NDArray[np.int32]
    present_LTK: npt.NDArray[np.bool_]

    @property
    def tokens(self) -> int:
        return len(self.batch.row_T)


def count_by(
    step: RoutedStep, *axes: tuple[npt.NDArray[np.integer], int], rows_T: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.int64]:
    """Count the step's pairs by layer and further axes, int64 [L, size of each axis].

    Parameters
    ----------
    step
    axes
        For each axis its index of every pair (broadcast against [L, T, K]) and its size.
    rows_T
        Count these tokens only.
    """
    layers = len(step.experts_LTK)
    cell_LTK = np.arange(layers)[:, None, None]
    for index, size in axes:
        cell_LTK = cell_LTK * size + index
    chosen_LTK = step.present_LTK if rows_T is None else step.present_LTK & rows_T[None, :, None]
    shape = (layers, *(size for _, size in axes))
    cells = np.broadcast_to(cell_LTK, chosen_LTK.shape)[chosen_LTK]
    return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape).astype(np.int64)
