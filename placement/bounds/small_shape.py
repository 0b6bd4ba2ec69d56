"""What layers of one size can look like when GPUs are interchangeable: replica counts, and contents of a GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_CELLS = 70_000_000
"""Vectors of counts x contents that are tabled at most: seconds per layer."""


@dataclass(frozen=True, eq=False)
class Shape:
    """All vectors of counts and all contents of layers of one size.

    Attributes
    ----------
    gpus, slots_per_gpu : int
    counts_CE : ndarray
        int8, every way to give experts 1 to G replicas that fill the slots.
    holds_AE : ndarray
        bool, the contents: every set of S experts.
    """

    gpus: int
    slots_per_gpu: int
    counts_CE: npt.NDArray[np.int8]
    holds_AE: Bools

    @cached_property
    def members_AS(self) -> Ints:
        """The experts of every content, int64 [A, S]."""
        return np.nonzero(self.holds_AE)[1].reshape(len(self.holds_AE), self.slots_per_gpu)

    def codes(self, counts_CE: npt.NDArray[np.integer]) -> Iterator[Ints]:
        """Yield for every content which of the G^S combinations its members' counts are; int64 [C] each."""
        digit_S = self.gpus ** np.arange(self.slots_per_gpu)
        for members_S in self.members_AS:
            yield (counts_CE[:, members_S].astype(np.int64) - 1) @ digit_S

    @cached_property
    def combinations_KS(self) -> Ints:
        """The G^S combinations of counts, in the order of their codes."""
        codes_K = np.arange(self.gpus**self.slots_per_gpu)
        return codes_K[:, None] // self.gpus ** np.arange(self.slots_per_gpu) % self.gpus + 1


def cells(*, experts: int, gpus: int, slots_per_gpu: int) -> int:
    """Count vectors of counts x contents, without listing them."""
    contents = math.comb(experts, slots_per_gpu)
    vectors = _ways(experts=experts, slots=gpus * slots_per_gpu, most=gpus)
    return contents * max(vectors, int(gpus**slots_per_gpu))


def small_shape(*, experts: int, gpus: int, slots_per_gpu: int) -> Shape | None:
    """List counts and contents; None where they are too many (:data:`MOST_CELLS`)."""
    if cells(experts=experts, gpus=gpus, slots_per_gpu=slots_per_gpu) > MOST_CELLS:
        return None
    contents = list(itertools.combinations(range(experts), slots_per_gpu))
    holds_AE = np.zeros((len(contents), experts), dtype=np.bool_)
    holds_AE[np.arange(len(contents))[:, None], np.array(contents)] = True
    counts_CE = _all_counts(experts=experts, slots=gpus * slots_per_gpu, most=gpus)
    return Shape(gpus, slots_per_gpu, counts_CE, holds_AE)


def _ways(*, experts: int, slots: int, most: int) -> int:
    """Count the vectors of ``experts`` numbers from 1 to ``most`` that add up to ``slots``."""
    ways = [1] + [0] * slots
    for _ in range(experts):
        ways = [sum(ways[total - count] for count in range(1, min(most, total) + 1)) for total in range(slots + 1)]
    return ways[slots]


def _all_counts(*, experts: int, slots: int, most: int) -> npt.NDArray[np.int8]:
    """List those vectors, int8 [C, E]."""
    # Vectors of the experts so far, by the slots that they fill.
    by_slots: dict[int, npt.NDArray[np.int8]] = {0: np.zeros((1, 0), dtype=np.int8)}
    for expert in range(experts):
        rest = experts - 1 - expert
        longer: dict[int, list[npt.NDArray[np.int8]]] = {}
        for filled, head_CE in by_slots.items():
            for count in range(1, most + 1):
                if rest <= slots - filled - count <= rest * most:
                    column_C = np.full(len(head_CE), count, dtype=np.int8)
                    longer.setdefault(filled + count, []).append(np.column_stack([head_CE, column_C]))
        by_slots = {filled: np.concatenate(parts) for filled, parts in longer.items()}
    return by_slots.get(slots, np.zeros((0, experts), dtype=np.int8))
