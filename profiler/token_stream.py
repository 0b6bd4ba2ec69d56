"""From recordings to tokens one by one, for what counts cannot tell: which experts a token needs together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.tokens import UNKNOWN_STEP, Tokens
from profiler.trace import PHASE_NUMBERS, TokenChunk, TraceHeader, TraceReader
from profiler.window_by import WindowBy
from profiler.window_keys import WindowCutter, WindowKey, select_tokens

NUMBERS_PER_INPUT = 2**40
"""Requests and steps of an input are counted from this times its number, so that those of two inputs differ."""


@dataclass(frozen=True, eq=False)
class RecordedTokens:
    """Tokens of recordings as a stream: the same tokens, windows and homes that their demand was added up from.

    It may be gone through any number of times; each time the recordings are read again, so memory stays small.

    Attributes
    ----------
    readers : sequence of TraceReader
        Token traces.
    header : TraceHeader
        What all of them have in common.
    window_by : WindowBy
    window_of : mapping
        Window of the demand by key; tokens of other windows (those without any traffic) are left out.
    late : sequence of (ndarray or None)
        Requests of every input that are held out, None where none are.
    part : {"planned", "held out"}
        Which side of ``late`` is streamed.
    phase : {"prefill", "decode"} or None
        Only this phase.
    measured : bool
        Whether the ranks that tokens were recorded on are their home GPUs.
    """

    readers: Sequence[TraceReader]
    header: TraceHeader
    window_by: WindowBy
    window_of: Mapping[WindowKey, int]
    late: Sequence[npt.NDArray[np.int64] | None]
    part: Literal["planned", "held out"]
    phase: Literal["prefill", "decode"] | None
    measured: bool

    def __iter__(self) -> Iterator[Tokens]:
        for number, reader in enumerate(self.readers):
            cutter = WindowCutter(self.window_by, number, reader, self.header)
            for chunk in reader.chunks():
                if isinstance(chunk, TokenChunk):
                    piece = self._piece(self._chosen(chunk, self.late[number]), number, cutter)
                    if piece.tokens:
                        yield piece

    def _chosen(self, chunk: TokenChunk, late: npt.NDArray[np.int64] | None) -> TokenChunk:
        if self.phase is not None:
            chunk = select_tokens(chunk, chunk.phase_T == PHASE_NUMBERS[self.phase])
        if late is None:
            return chunk
        is_late_T = np.isin(chunk.request_id_T, late)
        return select_tokens(chunk, is_late_T if self.part == "held out" else ~is_late_T)

    def _piece(self, chunk: TokenChunk, number: int, cutter: WindowCutter) -> Tokens:
        keys, index_T = cutter.windows_of_tokens(chunk)
        window_X = np.array([self.window_of.get(key, -1) for key in keys], dtype=np.int32)
        window_T = window_X[index_T] if len(window_X) else np.zeros(0, dtype=np.int32)
        if window_T.size and int(window_T.min()) < 0:
            chunk, window_T = select_tokens(chunk, window_T >= 0), window_T[window_T >= 0]
        first = number * NUMBERS_PER_INPUT
        return Tokens(
            experts_LTK=chunk.topk_LTK,
            experts=self.header.experts,
            home_T=chunk.source_T if self.measured else None,
            window_T=window_T,
            request_T=first + chunk.request_id_T % NUMBERS_PER_INPUT,
            step_T=np.where(chunk.step_T < 0, UNKNOWN_STEP, first + chunk.step_T % NUMBERS_PER_INPUT),
            phase_T=chunk.phase_T,
        )
