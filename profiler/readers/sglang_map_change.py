"""Did the layout change while recording?

The recorder writes the layout of the moment of the dump only, so slots recorded under an earlier layout would be read
as wrong experts. Nothing in the file says so; these tests look for what such a reading leads to.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from profiler.readers.sglang_map import MapPeriod, trivial_map

MAX_BLOCKS = 64
"""Stretches of the recording that are compared; a change is found to within one of them."""
MAX_BLOCK_CELLS = 2**23
"""Of all blocks together, 64 MiB."""
MIN_DISTANCE = 0.05
"""Profiles that are closer than this are the same profile, whatever their labels."""
RELABELLED_SHARE = 0.5
PERMUTED_SHARE = 0.1
"""Of the distance in place, what is left after relabelling, after sorting. Sorting leaves 0.22 to 0.71 of the distance
between real workloads (16 pairs of six models: tasks, languages, prefill against decode)."""

Shares = npt.NDArray[np.float64]


class SlotBlocks:
    """Slot counts of a recording, added up over stretches of passes.

    Parameters
    ----------
    passes : int
        Passes to come.
    layers, slots : int
    """

    def __init__(self, *, passes: int, layers: int, slots: int) -> None:
        self._passes = max(passes, 1)
        blocks = min(self._passes, MAX_BLOCKS, max(2, MAX_BLOCK_CELLS // (layers * slots)))
        self.counts_BLP = np.zeros((blocks, layers, slots), dtype=np.int64)

    def of_pass(self, index: int) -> npt.NDArray[np.int64]:
        """Return the block of a pass, int64 [L, P], to be added to."""
        block_LP: npt.NDArray[np.int64] = self.counts_BLP[index * len(self.counts_BLP) // self._passes]
        return block_LP


def layout_change(blocks: SlotBlocks, period: MapPeriod) -> str | None:
    """Look for a change of layout in slot counts.

    Parameters
    ----------
    blocks : SlotBlocks
    period : MapPeriod
        The layout that all passes are said to have run with.

    Returns
    -------
    str or None
        What was found, as the end of a sentence.
    """
    busy_B = blocks.counts_BLP.any(axis=(1, 2))
    counts_BLP = blocks.counts_BLP[busy_B]
    if len(counts_BLP) < 2:
        return None
    for before_LP, after_LP in _splits(counts_BLP):
        if _began_trivial(before_LP, after_LP, period):
            return "its earlier passes fit the layout an engine starts with, not the one of the dump"
    for split in range(2, len(counts_BLP) - 1):
        if _permuted(counts_BLP, split):
            return "from one pass to the next the same loads appear on other slots"
    return None


def _splits(counts_BLP: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    total_LP = counts_BLP.sum(axis=0)
    before_LP = np.zeros_like(total_LP)
    for counts_LP in counts_BLP[:-1]:
        before_LP = before_LP + counts_LP
        yield before_LP, total_LP - before_LP


def _began_trivial(before_LP: npt.NDArray[np.int64], after_LP: npt.NDArray[np.int64], period: MapPeriod) -> bool:
    """Whether the earlier passes agree with the later ones once they are read with the trivial layout.

    A workload that shifts moves away from itself under either reading; only a change of layout makes the wrong reading
    the much closer one.
    """
    layers, slots = period.map_LP.shape
    trivial = MapPeriod(0, trivial_map(layers, slots, period.experts), period.experts)
    moved_L = (period.map_LP != trivial.map_LP).any(axis=1) & before_LP.any(axis=1) & after_LP.any(axis=1)
    if not moved_L.any():
        return False
    after_LE = period.experts_of_counts(after_LP)[moved_L]
    as_said = _distance(period.experts_of_counts(before_LP)[moved_L], after_LE)
    as_trivial = _distance(trivial.experts_of_counts(before_LP)[moved_L], after_LE)
    return as_said - as_trivial >= MIN_DISTANCE and as_trivial <= RELABELLED_SHARE * as_said


def _permuted(counts_BLP: npt.NDArray[np.int64], split: int) -> bool:
    """Whether loads stay the same but for their places, abruptly: each side agrees with itself.

    Catches a change between any two layouts with as many replicas of equally loaded experts, above all without any.
    """
    sides = counts_BLP[:split], counts_BLP[split:]
    before_LP, after_LP = (side.sum(axis=0) for side in sides)
    busy_L = before_LP.any(axis=1) & after_LP.any(axis=1)
    if not busy_L.any():
        return False
    in_place = _distance(before_LP[busy_L], after_LP[busy_L])
    if in_place < 2 * MIN_DISTANCE:
        return False
    if _distance(np.sort(before_LP[busy_L]), np.sort(after_LP[busy_L])) > PERMUTED_SHARE * in_place:
        return False
    return all(_own_distance(side[:, busy_L]) <= 0.5 * in_place for side in sides)


def _own_distance(counts_BLP: npt.NDArray[np.int64]) -> float:
    half = len(counts_BLP) // 2
    return _distance(counts_BLP[:half].sum(axis=0), counts_BLP[half:].sum(axis=0))


def _distance(one_LX: npt.NDArray[np.int64], other_LX: npt.NDArray[np.int64]) -> float:
    """Return the total variation between two load profiles, mean over layers, 0 to 1."""
    return float(np.abs(_shares(one_LX) - _shares(other_LX)).sum(axis=1).mean() / 2)


def _shares(counts_LX: npt.NDArray[np.int64]) -> Shares:
    totals_L1 = counts_LX.sum(axis=1, keepdims=True)
    shares_LX: Shares = np.divide(counts_LX, np.maximum(totals_L1, 1), dtype=np.float64)
    return shares_LX
