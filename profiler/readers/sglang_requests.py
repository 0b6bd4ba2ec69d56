"""Forward modes of the engine, and which request a recorded token belongs to.

The recorder notes positions but no request ids (``srt/eplb/expert_distribution.py`` leaves them out). They are put
together again from what a scheduler does: a prefill pass lists its sequences, a decode pass has one token of every
running request, in an order that only changes by requests ending and new ones joining at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from profiler.readers.sglang_records import PassRecord

# srt/model_executor/forward_batch_info.py, ForwardMode
EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY, DRAFT_EXTEND, PREBUILT, SPLIT_PREFILL, DLLM_EXTEND = range(1, 10)

UNKNOWN_PHASE, PREFILL_PHASE, DECODE_PHASE = 0, 1, 2
_PHASES = {
    EXTEND: PREFILL_PHASE,
    SPLIT_PREFILL: PREFILL_PHASE,
    DECODE: DECODE_PHASE,
    TARGET_VERIFY: DECODE_PHASE,
}


def is_prefill(forward_mode: int) -> bool:
    return forward_mode in (EXTEND, MIXED, SPLIT_PREFILL)


class RequestTracker:
    """Gives the tokens of one rank the ids of the requests they most likely belong to.

    A sequence of a prefill pass is a new request, unless it goes on where the last sequence of the prefill pass before
    stopped (a long prompt in pieces). A token of a decode pass goes on with the first running request, in order, that
    has come to its position. Two neighbours at the same position of which one ended can be taken for each other, and a
    request that was put aside and started again gets a new id. Speculative decoding accepts an unknown number of
    tokens, so every stretch of its verification passes counts as a request of its own.

    Parameters
    ----------
    new_ids : iterator of int
        Ids not used before, shared by the trackers of a recording.
    """

    def __init__(self, new_ids: Iterator[int]) -> None:
        self._new_ids = new_ids
        self._running: list[int] = []
        self._next_positions: list[int] = []
        self._cut_short: tuple[int, int] | None = None

    def assign(self, record: PassRecord) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Return request id int64 [T] and phase uint8 [T] of a pass; passes must come in order."""
        mode, position_T = record.forward_mode, record.position_T
        phase_T = np.full(record.tokens, _PHASES.get(mode, UNKNOWN_PHASE), dtype=np.uint8)
        if is_prefill(mode) and sum(record.sequence_tokens) == record.tokens:
            request_T = self._prefill(record.sequence_tokens, position_T, phase_T, mixed=mode == MIXED)
        elif mode == DECODE:
            request_T = self._decode(position_T)
        else:
            request_T = self._stretches(position_T)
        return request_T, phase_T

    def _prefill(
        self,
        sequence_tokens: tuple[int, ...],
        position_T: npt.NDArray[np.int32],
        phase_T: npt.NDArray[np.uint8],
        *,
        mixed: bool,
    ) -> npt.NDArray[np.int64]:
        request_T = np.empty(len(position_T), dtype=np.int64)
        cut_short, self._cut_short = self._cut_short, None
        start = 0
        for length in sequence_tokens:
            if not length:
                continue
            rows = slice(start, start + length)
            first, after_last = int(position_T[start]), int(position_T[start + length - 1]) + 1
            phase = PREFILL_PHASE
            if mixed and length == 1 and first in self._next_positions:
                index = self._next_positions.index(first)
                phase = DECODE_PHASE
            elif cut_short is not None and cut_short[1] == first > 0:
                index, cut_short = self._rejoin(cut_short[0]), None
            else:
                index = self._join(first)
            self._next_positions[index] = after_last
            request_T[rows], phase_T[rows] = self._running[index], phase
            self._cut_short = (self._running[index], after_last)
            start += length
        return request_T

    def _decode(self, position_T: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Match rows and running requests in order; requests without a row have ended, or are still in prefill."""
        positions = position_T.tolist()
        if positions != self._next_positions:
            self._match(positions)
        self._next_positions = [position + 1 for position in positions]
        if self._cut_short is not None and self._cut_short[0] in self._running:
            self._cut_short = None
        return np.array(self._running, dtype=np.int64)

    def _match(self, positions: list[int]) -> None:
        matched: list[int] = []
        searched_from = 0
        for position in positions:
            try:
                index = self._next_positions.index(position, searched_from)
            except ValueError:
                matched.append(next(self._new_ids))
            else:
                matched.append(self._running[index])
                searched_from = index + 1
        self._running = matched

    def _join(self, position: int) -> int:
        self._running.append(next(self._new_ids))
        self._next_positions.append(position)
        return len(self._running) - 1

    def _rejoin(self, request: int) -> int:
        if request in self._running:
            return self._running.index(request)
        self._running.append(request)
        self._next_positions.append(0)
        return len(self._running) - 1

    def _stretches(self, position_T: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        begins_T = np.ones(len(position_T), dtype=bool)
        begins_T[1:] = np.diff(position_T) != 1
        ids = np.array([next(self._new_ids) for _ in range(int(begins_T.sum()))], dtype=np.int64)
        request_T: npt.NDArray[np.int64] = ids[np.cumsum(begins_T) - 1]
        return request_T
