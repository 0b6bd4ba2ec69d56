"""Tokens as multiples of what an even spread would give."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def over_row_mean(tokens_RC: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return every cell over its row's mean, float64 [rows, columns]: 1 is even; NaN in rows without tokens."""
    mean_R1 = tokens_RC.mean(axis=1, keepdims=True)
    relative_RC = np.full(tokens_RC.shape, np.nan)
    np.divide(tokens_RC, mean_R1, out=relative_RC, where=mean_R1 > 0)
    return relative_RC


def total_over_mean(tokens_RC: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return every column's total over the mean of the columns' totals, float64 [columns]."""
    total_C = tokens_RC.sum(axis=0)
    relative_C: npt.NDArray[np.float64] = total_C / total_C.mean()
    return relative_C
