"""The plugin's demand recording, as the replay engine serves it."""

from __future__ import annotations

import time
import uuid
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from profiler.engine.contract_demand import PHASES, DemandOptions, DemandWindow, PhaseCounts
from profiler.engine.json_fields import ContractViolation
from profiler.replay.step import RoutedStep, count_by

MAX_RING_BYTES = 2**30
"""A ring that could grow beyond this is refused."""


@dataclass
class _OpenWindow:
    """The window being filled."""

    index: int
    first_step: int
    generation: int
    started_s: float
    last_generation: int = 0
    ended_s: float = 0.0
    steps: int = 0
    phase_steps: dict[str, int] = field(default_factory=dict)
    phase_tokens: dict[str, int] = field(default_factory=dict)
    phase_counts_LSE: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    def add(self, step: RoutedStep, *, sources: int, experts: int) -> None:
        self.steps += 1
        self.last_generation = step.generation
        self.ended_s = step.ended_s
        axes = ((step.batch.source_T[None, :, None], sources), (step.experts_LTK, experts))
        for phase, rows_T in zip(PHASES, (~step.batch.decode_T, step.batch.decode_T), strict=True):
            if not rows_T.any():
                continue
            self.phase_steps[phase] = self.phase_steps.get(phase, 0) + 1
            self.phase_tokens[phase] = self.phase_tokens.get(phase, 0) + int(rows_T.sum())
            counts_LSE = count_by(step, *axes, rows_T=rows_T)
            so_far = self.phase_counts_LSE.get(phase)
            self.phase_counts_LSE[phase] = counts_LSE if so_far is None else so_far + counts_LSE

    def finished(self) -> DemandWindow:
        return DemandWindow(
            index=self.index,
            first_step=self.first_step,
            steps=self.steps,
            seconds=self.ended_s - self.started_s,
            generation=self.generation,
            last_generation=self.last_generation,
            phases=tuple(
                PhaseCounts(phase, self.phase_steps[phase], self.phase_tokens[phase], self.phase_counts_LSE[phase])
                for phase in PHASES
                if phase in self.phase_counts_LSE
            ),
        )


class DemandRecorder:
    """Routed pairs by layer, source GPU, expert and phase, in windows, held in a bounded ring.

    Parameters
    ----------
    layers, sources, experts : int
        Shape of a window's counts.
    """

    def __init__(self, *, layers: int, sources: int, experts: int) -> None:
        self.shape = (layers, sources, experts)
        self.recording = False
        self.recording_id = ""
        self.steps = 0
        self.dropped_windows = 0
        self._options = DemandOptions(window_steps=1)
        self._finished: deque[DemandWindow] = deque()
        self._open: _OpenWindow | None = None
        self._window_started_s = self._fetched_s = 0.0
        self._next_index = 0

    @property
    def waiting_windows(self) -> int:
        return len(self._finished)

    @property
    def owner(self) -> str:
        return self._options.owner

    def start(self, options: DemandOptions) -> str:
        """Begin a recording and forget the one before; returns whose recording it ended, empty for nobody's.

        Raises
        ------
        ContractViolation
            ``RECORDING_IN_PROGRESS`` while one is open that is not to be taken over; the ring would take more than
            :data:`MAX_RING_BYTES`.
        """
        ended = (self.owner or "somebody who gave no name") if self.recording and not self._lease_is_over() else ""
        if ended and not options.take_over:
            raise ContractViolation(
                f"a recording of {ended} is open already ({self.steps} steps so far); stop it first, wait for its end "
                "or take it over.",
                code="RECORDING_IN_PROGRESS",
            )
        window_bytes = int(np.prod(self.shape)) * 8 * len(PHASES)
        if options.ring_windows * window_bytes > MAX_RING_BYTES:
            raise ContractViolation(
                f"{options.ring_windows} windows of {window_bytes} bytes are more than {MAX_RING_BYTES} bytes; "
                f"at most {MAX_RING_BYTES // window_bytes} can be kept."
            )
        self._options = options
        self._finished.clear()
        self._open, self._next_index = None, 0
        self.steps = self.dropped_windows = 0
        self.recording_id = uuid.uuid4().hex
        self._window_started_s = self._fetched_s = time.monotonic()
        self.recording = True
        return ended

    def _lease_is_over(self) -> bool:
        """Whether nobody has fetched for so long that whoever records is taken for gone."""
        return time.monotonic() - self._fetched_s > self._options.lease_seconds

    def observe(self, step: RoutedStep) -> None:
        if not self.recording:
            return
        if self._open is None:
            self._open = _OpenWindow(self._next_index, step.index, step.generation, self._window_started_s)
            self._next_index += 1
        self._open.add(step, sources=self.shape[1], experts=self.shape[2])
        self.steps += 1
        if self._open_is_full():
            self._close()
        if self._options.max_steps is not None and self.steps >= self._options.max_steps:
            self.stop()

    def stop(self) -> None:
        """End the recording; its windows can still be fetched."""
        self._close()
        self.recording = False

    def fetch(self, max_windows: int) -> tuple[DemandWindow, ...]:
        """Hand over the oldest finished windows and forget them."""
        self._fetched_s = time.monotonic()
        return tuple(self._finished.popleft() for _ in range(min(max_windows, len(self._finished))))

    def _open_is_full(self) -> bool:
        window = self._open
        if window is None:
            return False
        if self._options.window_steps is not None:
            return window.steps >= self._options.window_steps
        return window.ended_s - window.started_s >= (self._options.window_seconds or 0.0)

    def _close(self) -> None:
        if self._open is None:
            return
        if len(self._finished) == self._options.ring_windows:
            self._finished.popleft()
            self.dropped_windows += 1
        self._window_started_s = self._open.ended_s
        self._finished.append(self._open.finished())
        self._open = None
