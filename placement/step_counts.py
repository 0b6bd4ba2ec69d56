"""Demand of single engine steps, from a token trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.demand import Sources
from placement.errors import BadTokens
from placement.tokens import PHASE_NUMBERS, UNKNOWN_STEP, Tokens, frozen_view

COUNT_BYTES = np.dtype(np.uint32).itemsize


@dataclass(frozen=True, eq=False)
class StepCounts:
    """How often every expert was chosen in single engine steps: a uniform sample of steps, each of them whole.

    Attributes
    ----------
    tokens_ZLSE : ndarray
        uint32 [Z, L, S, E], read-only: routed tokens of step z; S is 1 for uniform sources, else the number of GPUs.
    window_Z : ndarray
        int32 [Z], window of the step (of its first token, should it hold several).
    phase_Z : ndarray
        uint8 [Z], by :data:`PHASE_NUMBERS`; ``mixed`` where a step holds several phases or they are unknown.
    recorded_steps : int
        Steps of the whole recording.
    sources : {"measured", "uniform"}
    """

    tokens_ZLSE: npt.NDArray[np.uint32]
    window_Z: npt.NDArray[np.int32]
    phase_Z: npt.NDArray[np.uint8]
    recorded_steps: int
    sources: Sources

    def __post_init__(self) -> None:
        counts = np.asarray(self.tokens_ZLSE)
        if counts.ndim != 4 or counts.dtype != np.uint32:
            raise BadTokens(
                f"step counts have shape {counts.shape} of {counts.dtype}; [steps, layers, sources, experts] of uint32 "
                "is needed."
            )
        if self.sources == "uniform" and counts.shape[2] != 1:
            raise BadTokens(f"uniform sources have one row, step counts have {counts.shape[2]}.")
        if not len(counts) == len(self.window_Z) == len(self.phase_Z) <= self.recorded_steps:
            raise BadTokens(
                f"{len(counts)} steps were counted, with {len(self.window_Z)} windows and {len(self.phase_Z)} phases, "
                f"out of {self.recorded_steps} recorded."
            )
        for name in ("tokens_ZLSE", "window_Z", "phase_Z"):
            object.__setattr__(self, name, frozen_view(np.asarray(getattr(self, name))))

    @property
    def steps(self) -> int:
        return len(self.tokens_ZLSE)


class StepTally:
    """Counts the steps of a token trace piece by piece, keeping a bounded uniform sample of them.

    Which steps are kept depends on their numbers and the seed alone, not on how the trace is cut into pieces: those
    whose hash is smallest. A step's tokens may be far apart (rank after rank), so what is kept is kept from its start.

    Parameters
    ----------
    gpus : int
        Rows of a step where homes are known.
    most_bytes : int
        Of counts; at least one step is kept.
    seed : int
    """

    def __init__(self, *, gpus: int, most_bytes: int, seed: int) -> None:
        self._gpus = gpus
        self._most_bytes = most_bytes
        self._seed = seed
        self._cutoff = 2**64 - 1
        self._kept: dict[int, _Step] = {}
        self._seen: set[int] = set()
        self._sources: Sources = "uniform"

    def add(self, piece: Tokens) -> None:
        """Count the tokens of a piece whose step is known."""
        self._sources = piece.sources
        steps_Z, first_Z, step_T = np.unique(piece.step_T, return_index=True, return_inverse=True)
        self._seen.update(steps_Z[steps_Z != UNKNOWN_STEP].tolist())
        hash_Z = hashed(steps_Z, seed=self._seed)
        kept_Z = self._kept_of(piece, hash_Z, known_Z=steps_Z != UNKNOWN_STEP)
        if not kept_Z.any():
            return
        chosen_T = kept_Z[step_T]
        part = piece if bool(chosen_T.all()) else piece.pick(chosen_T)
        row_Z = np.cumsum(kept_Z) - 1
        counts_ZLSE = _counts(part, row_Z[step_T[chosen_T]], steps=int(kept_Z.sum()), gpus=self._gpus)
        phases_Z = _phases(part.phase_T, row_Z[step_T[chosen_T]], steps=len(counts_ZLSE))
        for row, index in enumerate(np.flatnonzero(kept_Z).tolist()):
            window = int(piece.window_T[first_Z[index]])
            step = _Step(int(hash_Z[index]), counts_ZLSE[row], window, int(phases_Z[row]))
            known = self._kept.get(int(steps_Z[index]))
            self._kept[int(steps_Z[index])] = step if known is None else known.with_more(step)
        self._drop(self._most_steps(piece))

    def counts(self) -> StepCounts | None:
        """Return what was counted, steps ascending; None where no step is known."""
        if not self._kept:
            return None
        steps = [self._kept[number] for number in sorted(self._kept)]
        return StepCounts(
            tokens_ZLSE=np.stack([step.tokens_LSE for step in steps]),
            window_Z=np.array([step.window for step in steps], dtype=np.int32),
            phase_Z=np.array([step.phase for step in steps], dtype=np.uint8),
            recorded_steps=len(self._seen),
            sources=self._sources,
        )

    def _kept_of(
        self, piece: Tokens, hash_Z: npt.NDArray[np.uint64], *, known_Z: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Mark the steps of a piece that can still be among those kept; bool [Z]."""
        most = self._most_steps(piece)
        if int(known_Z.sum()) > most:
            self._cutoff = min(self._cutoff, int(np.sort(hash_Z[known_Z])[most - 1]))
        return known_Z & (hash_Z <= np.uint64(self._cutoff))

    def _most_steps(self, piece: Tokens) -> int:
        sources = 1 if piece.home_T is None else self._gpus
        return max(1, self._most_bytes // (COUNT_BYTES * piece.layers * sources * piece.experts))

    def _drop(self, most: int) -> None:
        """Drop the steps with the largest hashes where there are more than ``most``."""
        if len(self._kept) <= most:
            return
        by_hash = sorted(self._kept.items(), key=lambda item: item[1].hash)
        self._kept = dict(by_hash[:most])
        self._cutoff = by_hash[most - 1][1].hash


@dataclass(frozen=True)
class _Step:
    hash: int
    tokens_LSE: npt.NDArray[np.uint32]
    window: int
    phase: int

    def with_more(self, more: _Step) -> _Step:
        phase = self.phase if self.phase == more.phase else PHASE_NUMBERS["mixed"]
        return _Step(self.hash, self.tokens_LSE + more.tokens_LSE, self.window, phase)


def hashed(numbers: npt.NDArray[np.int64], *, seed: int) -> npt.NDArray[np.uint64]:
    """Return numbers that look random and depend on nothing but each number and the seed, uint64.

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    mixed = numbers.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * (seed + 1) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _counts(part: Tokens, step_T: npt.NDArray[np.int64], *, steps: int, gpus: int) -> npt.NDArray[np.uint32]:
    """Count the experts chosen by step, layer and source; uint32 [Z, L, S, E]."""
    sources = 1 if part.home_T is None else gpus
    group_T = step_T if part.home_T is None else step_T * sources + part.home_T
    width = part.experts + 1  # one bin more takes what is no expert
    counts_ZLSE = np.empty((steps, part.layers, sources, part.experts), dtype=np.uint32)
    for layer in range(part.layers):
        bins_TK = np.minimum(part.experts_LTK[layer], part.experts).astype(np.int64) + (group_T * width)[:, None]
        counts = np.bincount(bins_TK.ravel(), minlength=steps * sources * width)
        counts_ZLSE[:, layer] = counts.reshape(steps, sources, width)[:, :, : part.experts]
    return counts_ZLSE


def _phases(phase_T: npt.NDArray[np.uint8], step_T: npt.NDArray[np.int64], *, steps: int) -> npt.NDArray[np.uint8]:
    """Return the phase that all tokens of a step share, else ``mixed``; uint8 [Z]."""
    lowest_Z = np.full(steps, 255, dtype=np.uint8)
    highest_Z = np.zeros(steps, dtype=np.uint8)
    np.minimum.at(lowest_Z, step_T, phase_T)
    np.maximum.at(highest_Z, step_T, phase_T)
    return np.where(lowest_Z == highest_Z, lowest_Z, np.uint8(PHASE_NUMBERS["mixed"]))
