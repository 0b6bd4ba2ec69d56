"""Balanced packing: heaviest first, onto the lightest pack that has room."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def pack_heaviest_first(
    weight_XI: npt.NDArray[np.floating], *, packs: int, room: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pack the items of every row, each pack taking at most ``room`` items.

    Graham's longest-processing-time rule (doi:10.1137/0117039) with a limit on the number of items. Of equal
    items the first goes first; of equal packs the first is taken. All rows advance together, one item a step.

    Parameters
    ----------
    weight_XI : ndarray
        Weight of every item, [rows, items]; added up in float64. There are at most ``packs * room`` items.
    packs, room : int

    Returns
    -------
    pack_XI, rank_XI : ndarray
        int64 [rows, items]: the pack of every item, and its position there in order of arrival.
    """
    rows, items = weight_XI.shape
    heaviest_first_XI = np.argsort(-weight_XI, axis=1, kind="stable")
    pack_XI = np.empty((rows, items), dtype=np.int64)
    rank_XI = np.empty((rows, items), dtype=np.int64)
    load_XQ = np.zeros((rows, packs), dtype=np.float64)
    count_XQ = np.zeros((rows, packs), dtype=np.int64)
    row_X = np.arange(rows)
    for item_X in heaviest_first_XI.T:
        pack_X = np.where(count_XQ < room, load_XQ, np.inf).argmin(axis=1)
        pack_XI[row_X, item_X] = pack_X
        rank_XI[row_X, item_X] = count_XQ[row_X, pack_X]
        load_XQ[row_X, pack_X] += weight_XI[row_X, item_X]
        count_XQ[row_X, pack_X] += 1
    return pack_XI, rank_XI
