"""What a recording holds, in pieces small enough to stream.

A trace is a header and a stream of chunks: counts per window, or routed expert ids per token. Readers produce
chunks; the Parquet writer and :mod:`profiler.windows` consume them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from placement.notice import Notice
from placement.tokens import NO_EXPERT, PHASE_NUMBERS, Phase

__all__ = [
    "NO_EXPERT",
    "PHASE_NUMBERS",
    "CountChunk",
    "Phase",
    "TokenChunk",
    "TraceHeader",
    "TraceReader",
]


@dataclass(frozen=True)
class TraceHeader:
    """What is known of a recording before reading its body.

    Attributes
    ----------
    kind : {"counts", "tokens"}
    layers : int
        Decoder layers, dense ones included.
    experts : int
        Routed experts (fused shared experts are not among them).
    top_k : int or None
        Experts per token, None where a recording of counts does not say.
    source_ranks : int or None
        Number of data-parallel ranks that sources are counted by; None where sources are unknown.
    engine, engine_version, model : str
        Empty where unknown.
    domain_names : tuple of str
        Names of :attr:`TokenChunk.domain_T` values.
    """

    kind: Literal["counts", "tokens"]
    layers: int
    experts: int
    top_k: int | None = None
    source_ranks: int | None = None
    engine: str = ""
    engine_version: str = ""
    model: str = ""
    domain_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class CountChunk:
    """Counts of one window.

    Attributes
    ----------
    window : str
        Name of the window. Chunks of one input with the same name belong to the same window: a dump that knows its
        engine steps yields a chunk per step, all under one name, and can then also be split by steps or seconds.
    tokens_LSE : ndarray
        int64 [L, S, E], S = ``source_ranks`` or 1 where unknown.
    steps : int
        Engine steps with traffic in this window, 0 where unknown.
    phase : {"prefill", "decode", "mixed"}
    seconds : float
        Length of the window, 0 where unknown.
    """

    window: str
    tokens_LSE: npt.NDArray[np.int64]
    steps: int = 0
    phase: Phase = "mixed"
    seconds: float = 0.0


@dataclass(frozen=True)
class TokenChunk:
    """Routed experts of consecutive tokens.

    Attributes
    ----------
    topk_LTK : ndarray
        uint16 [L, T, K], logical expert ids, :data:`NO_EXPERT` where there is none.
    request_id_T : ndarray
        int64 [T]; tokens of a request are consecutive within a rank's stream.
    position_T : ndarray
        int32 [T], position in the request, -1 where unknown.
    source_T : ndarray
        int32 [T], data-parallel rank the token lives on, -1 where unknown.
    domain_T : ndarray
        int32 [T], index into ``domain_names``, -1 where unknown.
    phase_T : ndarray
        uint8 [T], by :data:`PHASE_NUMBERS`.
    step_T : ndarray
        int64 [T], engine step (forward pass), -1 where unknown.
    window : str
        Name of the window the tokens belong to; empty for the input as a whole, as recorded.
    """

    topk_LTK: npt.NDArray[np.uint16]
    request_id_T: npt.NDArray[np.int64]
    position_T: npt.NDArray[np.int32]
    source_T: npt.NDArray[np.int32]
    domain_T: npt.NDArray[np.int32]
    phase_T: npt.NDArray[np.uint8]
    step_T: npt.NDArray[np.int64]
    window: str = ""


class TraceReader(Protocol):
    """One input, opened: its header is known, its body is streamed once or more often."""

    @property
    def header(self) -> TraceHeader: ...

    @property
    def name(self) -> str:
        """Short name of the input (file or folder name), used to name its window."""
        ...

    @property
    def content_hash(self) -> str:
        """SHA-256 over the input's bytes, 64 hex digits, for the plan's header."""
        ...

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Warnings about the input; complete once :meth:`chunks` is exhausted."""
        ...

    def chunks(self) -> Iterator[CountChunk | TokenChunk]: ...
