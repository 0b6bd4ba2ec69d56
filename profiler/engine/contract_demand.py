"""The engine plugin's messages for demand: routed tokens by source rank and phase, in windows.

Like :mod:`profiler.engine.contract`, it imports only the standard library and numpy.

A recording is held in a bounded ring inside the engine. ``POST /moeplan/demand/start`` opens one (409 while another
is open: one recording at a time, so that two readers never take each other's windows; the refusal says whose it is and
``take_over`` ends it). ``GET /moeplan/demand`` hands finished windows over, each once, oldest first; when the ring is
full the oldest is dropped and counted. ``POST /moeplan/demand/stop`` closes the window at hand; what is left can still
be fetched, until the next start. A recording that nobody fetches from ends by itself after ``lease_seconds``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.counts_codec import MAX_COUNTS, decode_counts, encode_counts
from profiler.engine.json_fields import ContractViolation, Fields, as_integer

PHASES = ("prefill", "decode")
MAX_RING_WINDOWS = 4096
DEFAULT_RING_WINDOWS = 64
DEFAULT_FETCH_WINDOWS = 8
DEFAULT_LEASE_S = 600.0
MAX_LEASE_S = 86400.0
MAX_OWNER_LETTERS = 200


@dataclass(frozen=True)
class DemandOptions:
    """Body of ``POST /moeplan/demand/start``.

    Attributes
    ----------
    window_steps : int or None
        Steps (forward passes of all ranks together) in a window; or else
    window_seconds : float or None
        its length in seconds. Exactly one of the two is given.
    max_steps : int or None
        The recording stops by itself after so many steps; None means when told to.
    ring_windows : int
        Finished windows the engine keeps until they are fetched, 1 to :data:`MAX_RING_WINDOWS`.
    lease_seconds : float
        The recording ends by itself when nobody has fetched from it for so long, up to :data:`MAX_LEASE_S`: a client
        that was killed leaves none behind.
    owner : str
        Who records, for whoever finds the engine taken; up to :data:`MAX_OWNER_LETTERS` letters.
    take_over : bool
        End the recording that is under way, whoever's it is; what it holds is lost.
    """

    window_steps: int | None = None
    window_seconds: float | None = None
    max_steps: int | None = None
    ring_windows: int = DEFAULT_RING_WINDOWS
    lease_seconds: float = DEFAULT_LEASE_S
    owner: str = ""
    take_over: bool = False

    def to_json(self) -> dict[str, Any]:
        return vars(self).copy()

    @classmethod
    def from_json(cls, message: object) -> DemandOptions:
        fields = Fields(message, "demand")
        window_steps, window_seconds = _steps_or_seconds(fields, steps="window_steps", seconds="window_seconds")
        ring = fields.integer("ring_windows", minimum=1) if "ring_windows" in fields else DEFAULT_RING_WINDOWS
        if ring > MAX_RING_WINDOWS:
            raise ContractViolation(f"demand.ring_windows is {ring}; at most {MAX_RING_WINDOWS} are kept.")
        return cls(
            window_steps=window_steps,
            window_seconds=window_seconds,
            max_steps=fields.optional("max_steps", lambda name: fields.integer(name, minimum=1)),
            ring_windows=ring,
            lease_seconds=_lease_seconds(fields),
            owner=fields.text("owner")[:MAX_OWNER_LETTERS] if "owner" in fields else "",
            take_over=fields.flag("take_over") if "take_over" in fields else False,
        )


def _lease_seconds(fields: Fields) -> float:
    seconds = fields.number("lease_seconds") if "lease_seconds" in fields else DEFAULT_LEASE_S
    if not 0 < seconds <= MAX_LEASE_S:
        raise ContractViolation(
            f"demand.lease_seconds is {seconds:g}; it must be above 0 and at most {MAX_LEASE_S:g} seconds."
        )
    return seconds


@dataclass(frozen=True)
class DemandState:
    """Answer of start and stop.

    Attributes
    ----------
    engine : str
    simulated : bool
        As in ``PluginHealth``.
    recording : bool
        Whether steps are being counted now.
    recording_id : str
        Name of the recording; another one means that somebody else has started anew.
    steps : int
        Steps counted so far.
    owner : str
        As in :class:`DemandOptions`.
    taken_over_from : str
        In the answer of start: whose recording ended for this one; empty when none did.
    """

    engine: str
    simulated: bool
    recording: bool
    recording_id: str
    steps: int
    owner: str = ""
    taken_over_from: str = ""

    def to_json(self) -> dict[str, Any]:
        return vars(self).copy()

    @classmethod
    def from_json(cls, message: object) -> DemandState:
        fields = Fields(message, "demand")
        return cls(
            engine=fields.text("engine"),
            simulated=fields.flag("simulated"),
            recording=fields.flag("recording"),
            recording_id=fields.text("recording_id"),
            steps=fields.integer("steps"),
            owner=fields.text("owner") if "owner" in fields else "",
            taken_over_from=fields.text("taken_over_from") if "taken_over_from" in fields else "",
        )


@dataclass(frozen=True, eq=False)
class PhaseCounts:
    """What one phase routed in a window.

    Attributes
    ----------
    phase : {"prefill", "decode"}
    steps : int
        Steps of the window in which at least one rank had tokens of this phase.
    tokens : int
        Tokens (rows) of all ranks, each counted once whatever its top-k.
    counts_LSE : ndarray
        int64 [L, S, E], routed (token, expert) pairs by decoder layer, source rank and logical expert.
    """

    phase: str
    steps: int
    tokens: int
    counts_LSE: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DemandWindow:
    """One finished window.

    Attributes
    ----------
    index : int
        Number of the window in its recording, from 0; a gap shows windows that were dropped or lost.
    first_step, steps : int
        First engine step, counted from the engine's start, and number of steps.
    seconds : float
        Wall-clock length.
    generation, last_generation : int
        ``Placement.generation`` at the first and at the last step: they differ when the layout changed in between.
    phases : tuple of PhaseCounts
        Phases that had tokens.
    unused_tokens : int
        Tokens that the engine computed beside those: with the overlap schedule it launches a step before it knows
        which requests have ended, and throws their token away. They are in no count.
    """

    index: int
    first_step: int
    steps: int
    seconds: float
    generation: int
    last_generation: int
    phases: tuple[PhaseCounts, ...]
    unused_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all phases."""
        return sum(phase.tokens for phase in self.phases)

    def to_json(self) -> dict[str, Any]:
        phases = [{**vars(phase), "counts_LSE": encode_counts(phase.counts_LSE)} for phase in self.phases]
        return {**vars(self), "tokens": self.tokens, "phases": phases}

    @classmethod
    def from_json(cls, message: object, where: str, *, shape: tuple[int, int, int]) -> DemandWindow:
        fields = Fields(message, where)
        phases = tuple(
            _phase_from_json(phase, f"{where}.phases[{index}]", shape=shape)
            for index, phase in enumerate(fields.items("phases"))
        )
        return cls(
            index=fields.integer("index"),
            first_step=fields.integer("first_step"),
            steps=fields.integer("steps", minimum=1),
            seconds=fields.number("seconds"),
            generation=fields.integer("generation"),
            last_generation=fields.integer("last_generation"),
            phases=phases,
            unused_tokens=fields.integer("unused_tokens") if "unused_tokens" in fields else 0,
        )


def _phase_from_json(message: object, where: str, *, shape: tuple[int, int, int]) -> PhaseCounts:
    fields = Fields(message, where)
    return PhaseCounts(
        phase=fields.text("phase", allowed=PHASES),
        steps=fields.integer("steps"),
        tokens=fields.integer("tokens"),
        counts_LSE=decode_counts(fields.value("counts_LSE"), f"{where}.counts_LSE", shape=shape),
    )


@dataclass(frozen=True, eq=False)
class DemandAnswer:
    """Answer of ``GET /moeplan/demand``.

    Attributes
    ----------
    engine, simulated, recording, recording_id, steps
        As in :class:`DemandState`.
    layers, sources, experts : int
        Shape of every window's counts.
    windows : tuple of DemandWindow
        Finished windows, oldest first, no longer held by the engine.
    remaining : int
        Finished windows that are still to be fetched.
    dropped_windows : int
        Windows lost so far because the ring was full.
    """

    engine: str
    simulated: bool
    recording: bool
    recording_id: str
    steps: int
    layers: int
    sources: int
    experts: int
    windows: tuple[DemandWindow, ...]
    remaining: int
    dropped_windows: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "windows": [window.to_json() for window in self.windows]}

    @classmethod
    def from_json(cls, message: object) -> DemandAnswer:
        fields = Fields(message, "demand")
        sizes = {name: fields.integer(name, minimum=1) for name in ("layers", "sources", "experts")}
        shape = (sizes["layers"], sizes["sources"], sizes["experts"])
        windows = fields.items("windows")
        _require_bounded(windows, shape)
        return cls(
            engine=fields.text("engine"),
            simulated=fields.flag("simulated"),
            recording=fields.flag("recording"),
            recording_id=fields.text("recording_id"),
            steps=fields.integer("steps"),
            windows=tuple(
                DemandWindow.from_json(w, f"demand.windows[{i}]", shape=shape) for i, w in enumerate(windows)
            ),
            remaining=fields.integer("remaining"),
            dropped_windows=fields.integer("dropped_windows"),
            layers=shape[0],
            sources=shape[1],
            experts=shape[2],
        )


def _require_bounded(windows: list[Any], shape: tuple[int, int, int]) -> None:
    """Refuse an answer before anything is unpacked that would not fit: zeros compress a thousandfold."""
    arrays = sum(len(window["phases"]) for window in windows if _has_phases(window))
    if arrays * math.prod(shape) > MAX_COUNTS:
        raise ContractViolation(
            f"demand.windows holds {arrays} arrays of {math.prod(shape)} counts; at most {MAX_COUNTS} counts are read."
        )


def _has_phases(window: object) -> bool:
    return isinstance(window, dict) and isinstance(window.get("phases"), list)


def _steps_or_seconds(fields: Fields, *, steps: str, seconds: str) -> tuple[int | None, float | None]:
    """Read a length given in steps or in seconds, never in both."""
    in_steps = fields.optional(steps, lambda name: as_integer(fields.value(name), f"{fields.where}.{name}", minimum=1))
    in_seconds = fields.optional(seconds, fields.number)
    if (in_steps is None) == (in_seconds is None):
        raise ContractViolation(f"{fields.where} needs either {steps} or {seconds}, and not both.")
    if in_seconds is not None and in_seconds <= 0:
        raise ContractViolation(f"{fields.where}.{seconds} is {in_seconds:g}; it must be above 0.")
    return in_steps, in_seconds
