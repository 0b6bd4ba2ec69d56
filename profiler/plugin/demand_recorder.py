"""Routed tokens of one rank: counted on the device, closed into windows, kept in a bounded ring.

Nothing in here waits for the device while the engine serves: counts are added by kernels on the stream of the
forward pass, finished windows stay on the device, and only fetching them waits.

A step belongs to the recording when it is launched and is counted when the engine looks at its result, which with the
overlap schedule happens after the next step was launched.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.contract_demand import PHASES, DemandOptions
from profiler.plugin.graph_tap import GraphTap
from profiler.plugin.orders import OrderRefused
from profiler.plugin.own_rows import StepRows, first_own_token, own_bounds
from profiler.plugin.rank_view import RankView
from profiler.plugin.step_log import LoggedStep, StepLog, empty_counts

DEVICE_RING_BYTES = 64 * 2**20
"""Device memory that finished windows may take; larger rings go to host memory, which waits for the device."""

MOST_UNSETTLED_STEPS = 16
"""An engine has one step in flight, two at most; more means that its results are not seen."""


@dataclass
class _OpenWindow:
    index: int
    first_step: int = 0
    steps: int = 0
    opened_s: float = 0.0
    generation: int = 0
    last_generation: int = 0
    unused_tokens: int = 0
    tokens: list[int] = field(default_factory=lambda: [0] * len(PHASES))
    phase_steps: list[list[int]] = field(default_factory=lambda: [[] for _ in PHASES])


@dataclass(frozen=True)
class RankWindow:
    """One rank's part of a finished window.

    Attributes
    ----------
    index, first_step, steps : int
    seconds : float
    generation, last_generation : int
        As in ``DemandWindow``.
    unused_tokens : int
        Own tokens that were computed and thrown away.
    tokens : list of int
        Own tokens by phase.
    phase_steps : list of list of int
        Steps of the window, from 0, in which this rank had tokens, by phase.
    counts : tensor
        int64 [phases, layers, experts + 1]; the last column collects padding and fused shared experts.
    """

    index: int
    first_step: int
    steps: int
    seconds: float
    generation: int
    last_generation: int
    unused_tokens: int
    tokens: list[int]
    phase_steps: list[list[int]]
    counts: Any

    def counts_FLE(self) -> npt.NDArray[np.int64]:
        """Return int64 [phases, layers, experts]; waits for the device."""
        counts_FLE: npt.NDArray[np.int64] = self.counts[:, :, :-1].cpu().numpy()
        return counts_FLE


class DemandRecorder:
    """A recording on one rank.

    Parameters
    ----------
    layers, experts : int
    device
        Where the router's ids are.
    view : RankView
    options : DemandOptions
        ``window_seconds`` is kept by whoever calls :meth:`close_window` on all ranks at once.
    recording_id : str
    tap : GraphTap or None
        Where graphs that are replayed write their routing.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self,
        *,
        layers: int,
        experts: int,
        device: Any,
        view: RankView,
        options: DemandOptions,
        recording_id: str,
        tap: GraphTap | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recording_id = recording_id
        self.recording = True
        self.steps = 0
        self.dropped_windows = 0
        self._view = view
        self.options = options
        self._clock = clock
        self._log = StepLog(empty_counts(layers=layers, experts=experts, device=device), view, tap)
        self._ring: deque[RankWindow] = deque()
        self._step: LoggedStep | None = None
        self._seen_layers: set[int] = set()
        self._launched = 0
        self._unsettled: deque[LoggedStep] = deque()
        self._fetched_s = clock()
        self._window = _OpenWindow(index=0, opened_s=clock())

    @property
    def in_step(self) -> bool:
        """Whether a forward pass that counts is running."""
        return self._step is not None

    @property
    def finished_windows(self) -> int:
        return len(self._ring)

    @property
    def unfetched_s(self) -> float:
        """Seconds since somebody fetched, or since the start."""
        return self._clock() - self._fetched_s

    @property
    def takes_steps(self) -> bool:
        """Whether the next forward pass belongs to the recording."""
        limit = self.options.max_steps
        return self.recording and (limit is None or self._launched < limit)

    def begin_step(self, rows: StepRows) -> None:
        """A forward pass of the served model begins."""
        self._step = LoggedStep(rows, launched_s=self._clock())
        self._seen_layers.clear()

    def count_layer(self, layer: int, topk_ids_RK: Any, *, padded_tokens: Sequence[int] | None) -> None:
        """Log a layer's routing as the router hands it over: logical expert ids, before replicas are chosen."""
        step = self._step
        if step is None:
            return
        self._seen_layers.add(layer)
        if not self._view.counts_its_rows or step.rows.tokens == 0:
            return
        rows = int(topk_ids_RK.shape[0])
        start, end = own_bounds(self._view, step.rows.tokens, rows=rows, padded_tokens=padded_tokens)
        step.add_rows(layer, topk_ids_RK[start:end], first_token=first_own_token(self._view, rows=rows))

    def end_step(self, *, number: int, generation: int, captured: GraphTap | None) -> LoggedStep | None:
        """The forward pass is over; returns it for :meth:`settle`.

        Parameters
        ----------
        number : int
            The engine's number of this step.
        generation : int
            Applied pushes so far.
        captured : GraphTap or None
            Where a replayed graph wrote its routing; None when none was replayed.
        """
        step, self._step = self._step, None
        if step is None:
            return None
        step.number, step.generation = number, generation
        if captured is not None and self._view.counts_its_rows:
            self._log.tap = captured
            step.add_graph(
                captured, layers=tuple(layer for layer in captured.written_layers if layer not in self._seen_layers)
            )
        if len(self._unsettled) >= MOST_UNSETTLED_STEPS:
            raise OrderRefused("the engine looks at its results where the plugin does not.", code="ROUTING_NOT_SEEN")
        self._launched += 1
        self._unsettled.append(step)
        return step

    def settle(self, step: LoggedStep, *, unused_tokens: tuple[int, ...] = ()) -> None:
        """The engine has looked at a step's result: count it, and close the window when it is full.

        Parameters
        ----------
        unused_tokens : tuple of int
            Tokens of the batch whose result the engine throws away, because their request ended meanwhile.
        """
        if step not in self._unsettled:
            return
        self._unsettled.remove(step)
        if unused_tokens:
            step.leave_out(unused_tokens)
        self._log.add(step)
        self._note(step, tokens=step.rows.tokens - len(unused_tokens))
        self.steps += 1
        if self.options.window_steps is not None and self._window.steps >= self.options.window_steps:
            self.close_window()
        if self.options.max_steps is not None and self.steps >= self.options.max_steps:
            self.recording = False
        if not self.recording and not self._unsettled:
            self.close_window()

    def _note(self, step: LoggedStep, *, tokens: int) -> None:
        window, phase = self._window, step.rows.phase
        if window.steps == 0:
            window.first_step, window.generation, window.opened_s = step.number, step.generation, step.launched_s
        window.last_generation = step.generation
        if self._view.attn_tp_rank == 0:
            window.unused_tokens += step.rows.tokens - tokens
        if tokens:
            window.phase_steps[phase].append(window.steps)
            window.tokens[phase] += tokens if self._view.attn_tp_rank == 0 else 0
        window.steps += 1

    def close_window(self) -> None:
        """Finish the window at hand, unless it is empty."""
        window = self._window
        if window.steps == 0:
            return
        self._log.count()
        finished = RankWindow(
            index=window.index,
            first_step=window.first_step,
            steps=window.steps,
            seconds=self._clock() - window.opened_s,
            generation=window.generation,
            last_generation=window.last_generation,
            unused_tokens=window.unused_tokens,
            tokens=window.tokens,
            phase_steps=window.phase_steps,
            counts=self._kept_counts(),
        )
        self._log.counts_FLE.zero_()
        if len(self._ring) >= self.options.ring_windows:
            self._ring.popleft()
            self.dropped_windows += 1
        self._ring.append(finished)
        self._window = _OpenWindow(index=window.index + 1, opened_s=self._clock())

    def _kept_counts(self) -> Any:
        counts_FLE = self._log.counts_FLE
        ring_bytes = self.options.ring_windows * counts_FLE.numel() * counts_FLE.element_size()
        return counts_FLE.clone() if ring_bytes <= DEVICE_RING_BYTES else counts_FLE.cpu().clone()

    def stop(self) -> None:
        """Take no more steps; the last window closes with the last step's result. Windows can still be fetched."""
        self.recording = False
        if not self._unsettled:
            self.close_window()

    def fetch(self, max_windows: int) -> list[RankWindow]:
        """Hand over finished windows, oldest first, each once."""
        self._fetched_s = self._clock()
        if not self.recording:
            for step in tuple(self._unsettled):  # a paused engine looks at no results
                self.settle(step)
        return [self._ring.popleft() for _ in range(min(max_windows, len(self._ring)))]
