"""Counting routed ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def count_ids(
    topk_LTK: npt.NDArray[np.uint16], group_T: npt.NDArray[np.int64], *, groups: int, experts: int
) -> npt.NDArray[np.int64]:
    """Count how often every expert was chosen, by layer and group of tokens.

    Parameters
    ----------
    topk_LTK : ndarray
        uint16 [L, T, K]; ids of ``experts`` and above (:data:`profiler.trace.NO_EXPERT`) are not counted.
    group_T : ndarray
        int64 [T], 0 <= group < ``groups``: window, source or both.
    groups, experts : int

    Returns
    -------
    ndarray
        int64 [groups, L, experts].
    """
    layers = topk_LTK.shape[0]
    counts_ZLE = np.zeros((groups, layers, experts), dtype=np.int64)
    # One bin more per group takes what is no expert. Bins of a group lie together, so one bincount does a layer.
    width = experts + 1
    offset_T1 = (group_T * width)[:, None] if groups > 1 else None
    for layer in range(layers):
        bins_TK = np.minimum(topk_LTK[layer], experts).astype(np.intp)  # [T, K]
        if offset_T1 is not None:
            bins_TK += offset_T1
        counted_Z = np.bincount(bins_TK.ravel(), minlength=groups * width)  # [groups * (E + 1)]
        counts_ZLE[:, layer] = counted_Z.reshape(groups, width)[:, :experts]
    return counts_ZLE
