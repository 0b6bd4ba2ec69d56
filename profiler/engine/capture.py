"""Recording demand from a live engine through the plugin, by source GPU and phase."""

from __future__ import annotations

import hashlib
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from placement.errors import BadOption, EmptyProfile
from placement.notice import Notice
from profiler.conservation import token_notices
from profiler.engine.client import EngineClient
from profiler.engine.contract import Placement
from profiler.engine.contract_demand import (
    MAX_RING_WINDOWS,
    PHASES,
    DemandAnswer,
    DemandOptions,
    DemandState,
    DemandWindow,
)
from profiler.errors import EngineAnswerInvalid, EngineBusy, EngineError, EngineRestarted, PluginMissing
from profiler.trace import CountChunk, Phase, TraceHeader

POLL_S = 0.2
DEFAULT_WINDOW_STEPS = 100

LEASE_S = 60.0
"""The engine ends a recording that was not fetched from for so long; it is fetched from every :data:`POLL_S`."""

RING_BYTES = 256 * 2**20
"""Memory the engine may use for windows that wait to be fetched."""

ANSWER_BYTES = 32 * 2**20
"""Counts asked for in one answer, before they are compressed."""


@dataclass(frozen=True, eq=False)
class CaptureResult:
    """What was captured: a trace of counts with measured sources (a :class:`profiler.trace.TraceReader`).

    Attributes
    ----------
    name : str
        The engine's URL without its scheme.
    header : TraceHeader
    windows : tuple of DemandWindow
        In the order they were recorded.
    notices : tuple of Notice
    simulated : bool
        True when the engine is a replay.
    """

    name: str
    header: TraceHeader
    windows: tuple[DemandWindow, ...]
    notices: tuple[Notice, ...]
    simulated: bool

    @property
    def steps(self) -> int:
        return sum(window.steps for window in self.windows)

    @property
    def tokens(self) -> int:
        return sum(window.tokens for window in self.windows)

    @property
    def content_hash(self) -> str:
        """SHA-256 over the windows' names, shapes and counts."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(f"{chunk.window} {chunk.phase} {chunk.steps} {chunk.tokens_LSE.shape}\n".encode())
            digest.update(chunk.tokens_LSE.astype("<i8").tobytes())
        return digest.hexdigest()

    def chunks(self) -> Iterator[CountChunk]:
        """Yield one chunk for every window and phase; chunks of one window have the same name."""
        for window in self.windows:
            for phase in window.phases:
                yield CountChunk(
                    window=f"window {window.index}",
                    tokens_LSE=phase.counts_LSE,
                    steps=phase.steps,
                    phase=_phase(phase.phase),
                    seconds=window.seconds,
                )


def capture(
    client: EngineClient,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    window_steps: int | None = None,
    window_seconds: float | None = None,
    stalled_s: float = 60.0,
    take_over: bool = False,
    on_window: Callable[[DemandWindow], None] = lambda window: None,
) -> CaptureResult:
    """Record demand for some steps or seconds. The recording is stopped at the end, whatever the end is.

    Parameters
    ----------
    client
    steps, seconds
        How long to record; exactly one of them.
    window_steps, window_seconds
        Length of a window, by default :data:`DEFAULT_WINDOW_STEPS` steps.
    stalled_s
        With ``steps``: give up when the engine serves nothing for so long; what was recorded is kept, with a notice.
    take_over
        End the recording of somebody else that is under way; what it holds is lost.
    on_window
        Called with every window as it arrives.

    Raises
    ------
    BadOption
        Not exactly one of ``steps`` and ``seconds``, or both window lengths.
    EngineBusy
        Somebody else is recording, or has taken the recording over.
    EngineRestarted
        It was started anew meanwhile.
    EmptyProfile
        The engine served nothing meanwhile.
    EngineError
        As all of :class:`profiler.engine.client.EngineClient`.
    """
    options = _demand_options(steps, seconds, window_steps, window_seconds)
    health = client.health()
    if not health.abilities["demand"].works:
        raise PluginMissing(f"{client.url}: the plugin cannot record demand: {health.abilities['demand'].reason}.")
    placement = client.placement()
    notices: list[Notice] = []
    collected = _Collected(client, placement, on_window)
    options = replace(options, ring_windows=_windows_in(RING_BYTES, placement), owner=_owner(), take_over=take_over)
    with _recording(client, options) as state:
        if state.taken_over_from:
            notices.append(Notice("TAKEN_OVER", f"the recording of {state.taken_over_from} was ended for this one."))
        stalled = _follow(collected, state, steps=steps, seconds=seconds, stalled_s=stalled_s)
    collected.take(state)
    if stalled:
        served = f"after {sum(window.steps for window in collected.windows)} of {steps} steps"
        notices.append(Notice("ENGINE_IDLE", f"the engine served nothing for {stalled_s:g} s {served}."))
    return collected.result(notices)


class _Collected:
    """Windows taken out of one recording, and what was lost of it."""

    def __init__(self, client: EngineClient, placement: Placement, on_window: Callable[[DemandWindow], None]) -> None:
        self._client = client
        self._placement = placement
        self._on_window = on_window
        self._sources = placement.ep_size
        self.windows: list[DemandWindow] = []

    def take(self, state: DemandState) -> DemandAnswer:
        """Take out everything that is finished; return the last answer."""
        # An engine cannot have finished more than its ring holds; one that says so would keep us here for ever.
        for _ in range(MAX_RING_WINDOWS):
            answer = self._client.demand(max_windows=_windows_in(ANSWER_BYTES, self._placement))
            self._check(answer, state)
            for window in answer.windows:
                self.windows.append(window)
                self._on_window(window)
            if not answer.remaining or not answer.windows:
                break
        return answer

    def result(self, notices: list[Notice]) -> CaptureResult:
        placement, url = self._placement, self._client.url
        if not any(window.tokens for window in self.windows):
            raise EmptyProfile(f"{url} served no token while it was recorded: was there traffic?")
        return CaptureResult(
            name=url.split("://", 1)[-1],
            header=TraceHeader(
                kind="counts",
                layers=placement.layers,
                experts=placement.experts,
                top_k=placement.top_k,
                # One source: all GPUs share all tokens, so that no token has a home.
                source_ranks=self._sources if self._sources == placement.ep_size else None,
                engine=placement.engine,
                engine_version=placement.engine_version,
                model=placement.model,
            ),
            windows=tuple(self.windows),
            notices=(*notices, *self._notices()),
            simulated=placement.simulated,
        )

    def _check(self, answer: DemandAnswer, state: DemandState) -> None:
        placement = self._placement
        if answer.recording_id != state.recording_id:
            if self._client.placement().boot_id != placement.boot_id:
                raise EngineRestarted(
                    f"{self._client.url} was started anew while it was recorded; its counts are lost."
                )
            raise EngineBusy(f"{self._client.url}: somebody else has started another recording meanwhile.")
        found = (answer.layers, answer.sources, answer.experts)
        one, all_gpus = ((placement.layers, sources, placement.experts) for sources in (1, placement.ep_size))
        if found not in (one, all_gpus):
            raise EngineAnswerInvalid(
                f"{self._client.url}: demand has {found[0]} layers, {found[1]} sources and {found[2]} experts; the "
                f"engine has {placement.layers}, {placement.ep_size} and {placement.experts}."
            )
        self._sources = answer.sources

    def _notices(self) -> Iterator[Notice]:
        indices = [window.index for window in self.windows]
        lost = max(indices) + 1 - len(set(indices))
        if lost:
            detail = f"{lost} windows of {max(indices) + 1} were lost: the engine's ring was full, or an answer was."
            yield Notice("WINDOWS_LOST", detail)
        generations = {generation for w in self.windows for generation in (w.generation, w.last_generation)}
        if len(generations) > 1:
            detail = f"the layout changed {len(generations) - 1} times while recording; expert counts are not affected."
            yield Notice("LAYOUT_CHANGED", detail)
        served = [window for window in self.windows if window.phases]
        sums_WL = np.array([sum(phase.counts_LSE.sum(axis=(1, 2)) for phase in window.phases) for window in served])
        yield from token_notices(
            sums_WL, [f"window {w.index}" for w in served], [w.tokens for w in served], top_k=self._placement.top_k
        )


@contextmanager
def _recording(client: EngineClient, options: DemandOptions) -> Iterator[DemandState]:
    """Start a recording and stop it at the end; an error on the way is reported before one of stopping."""
    try:
        state = client.start_demand(options)
    except EngineBusy as error:
        error.remedies = error.remedies or ("wait for its end", "end it with --take-over; what it holds is lost")
        raise
    try:
        yield state
    except (EngineBusy, EngineRestarted):  # the open recording is somebody else's now, if there is one
        raise
    except BaseException as first:
        try:
            client.stop_demand()
        except EngineError as error:
            first.add_note(f"The recording could not be stopped either: {error.detail}")
        raise
    client.stop_demand()


def _follow(
    collected: _Collected, state: DemandState, *, steps: int | None, seconds: float | None, stalled_s: float
) -> bool:
    """Take windows out until the recording is over; return whether the engine stopped serving before."""
    started_s = moved_s = time.monotonic()
    served_steps = 0
    while True:
        answer = collected.take(state)
        now_s = time.monotonic()
        if answer.steps > served_steps:
            served_steps, moved_s = answer.steps, now_s
        if steps is not None and served_steps >= steps:
            return False
        if not answer.recording or (seconds is not None and now_s - started_s >= seconds):
            return False
        if seconds is None and now_s - moved_s >= stalled_s:
            return True
        time.sleep(POLL_S if seconds is None else max(0.0, min(POLL_S, started_s + seconds - now_s)))


def _demand_options(
    steps: int | None, seconds: float | None, window_steps: int | None, window_seconds: float | None
) -> DemandOptions:
    if (steps is None) == (seconds is None):
        raise BadOption("give either steps or seconds to record, and not both.")
    if window_steps is not None and window_seconds is not None:
        raise BadOption("give the length of a window in steps or in seconds, not in both.")
    lengths = {"steps": steps, "seconds": seconds, "window_steps": window_steps, "window_seconds": window_seconds}
    for name, value in lengths.items():
        if value is not None and not 0 < value < math.inf:
            raise BadOption(f"{name} is {value}; it must be above 0 and finite.")
    if window_seconds is None:
        window_steps = window_steps or DEFAULT_WINDOW_STEPS
    return DemandOptions(
        window_steps=window_steps, window_seconds=window_seconds, max_steps=steps, lease_seconds=LEASE_S
    )


def _windows_in(limit_bytes: int, placement: Placement) -> int:
    """Return how many windows with both phases fit into some bytes, at least 1."""
    window_bytes = placement.layers * placement.ep_size * placement.experts * 8 * len(PHASES)
    return max(1, min(MAX_RING_WINDOWS, limit_bytes // window_bytes))


def _phase(name: str) -> Phase:
    return "prefill" if name == "prefill" else "decode"


def _owner() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
