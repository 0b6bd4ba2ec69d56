"""SGLang's own recorder in mode ``stat``, as the replay engine serves it."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from profiler.replay.step import RoutedStep, count_by

logger = logging.getLogger(__name__)


class StatRecorder:
    """A ring of slot counts per step, turned into expert counts when it is dumped.

    After SGLang's ``srt/eplb/expert_distribution.py``. Like the engine's, it is reset by every start and every dump,
    overwrites its oldest step when full, and reads all steps with the layout of the moment of the dump: steps
    recorded before a push come out wrong.

    Parameters
    ----------
    ring_steps : int
        Steps kept, ``--expert-distribution-recorder-buffer-size``.
    layers, slots, experts : int
    counting_ranks : int
        Ranks that count every token: 1 behind an all-to-all, all of them without one. Their counts are summed.
    """

    def __init__(self, *, ring_steps: int, layers: int, slots: int, experts: int, counting_ranks: int) -> None:
        self.recording = False
        self._experts = experts
        self._counting_ranks = counting_ranks
        self._next_step = 0
        self._counts_RLP = np.zeros((ring_steps, layers, slots), dtype=np.int32)

    def start(self) -> None:
        if self.recording:
            logger.warning("The recorder was recording already: what it held is thrown away.")
        self._reset()
        self.recording = True

    def stop(self) -> None:
        if not self.recording:
            logger.warning("The recorder was not recording.")
        self.recording = False

    def observe(self, step: RoutedStep) -> None:
        if self.recording:
            counts_LP = count_by(step, (step.slots_LTK, self._counts_RLP.shape[2]))
            self._counts_RLP[self._next_step] = counts_LP * self._counting_ranks
            self._next_step = (self._next_step + 1) % len(self._counts_RLP)

    def dump(self, map_LP: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return expert counts, int32 [ring steps, L, E], unused steps zero, and forget them."""
        ring_steps, layers, _ = self._counts_RLP.shape
        counts_LER = np.zeros((layers, self._experts, ring_steps), dtype=np.int32)
        for layer in range(layers):
            np.add.at(counts_LER[layer], map_LP[layer], self._counts_RLP[:, layer].T)
        self._reset()
        return np.ascontiguousarray(counts_LER.transpose(2, 0, 1))

    def _reset(self) -> None:
        self._counts_RLP[...] = 0
