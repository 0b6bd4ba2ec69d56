"""Which window a piece of a recording belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.errors import BadOption
from profiler.trace import CountChunk, TokenChunk, TraceHeader, TraceReader
from profiler.window_by import WindowBy


@dataclass(frozen=True, order=True)
class WindowKey:
    """Identity of a window while adding up.

    Attributes
    ----------
    reader : int
        Number of the input; 0 for windows that inputs share (domains).
    order : int
        Place among the input's windows, where they have an order of their own.
    name : str
    """

    reader: int
    order: int
    name: str


class WindowCutter:
    """Cuts one input into windows.

    Parameters
    ----------
    rule : WindowBy
        ``none`` is cut as ``file``; windows are added up when all are known, because some may be held out.
    number : int
        Number of the input.
    reader : TraceReader
        The input.
    header : TraceHeader
        What all inputs have in common; domains are numbered by it.
    """

    def __init__(self, rule: WindowBy, number: int, reader: TraceReader, header: TraceHeader) -> None:
        self._rule = rule
        self._number = number
        self._reader = reader
        self._domain_names = header.domain_names
        self._steps_so_far = 0
        self._seconds_so_far = 0.0
        if rule.kind == "domain" and not reader.header.domain_names:
            raise BadOption(f"{reader.name} does not say which domain its tokens are of; windows by file are possible.")
        numbers = [header.domain_names.index(name) for name in reader.header.domain_names]
        # The last entry is what -1 (unknown) picks: a window of its own behind the named ones.
        self._domain_order = np.array([*numbers, len(header.domain_names)], dtype=np.int64)

    def window_of_counts(self, chunk: CountChunk) -> WindowKey:
        """Return the window of a chunk of counts. Chunks must come in order; each goes where it starts."""
        kind = self._rule.kind
        if kind in ("file", "none"):
            return WindowKey(self._number, 0, chunk.window or self._reader.name)
        if kind == "domain":
            raise BadOption(f"{self._reader.name} holds counts; windows by domain need a token trace.")
        known = chunk.steps > 0 if kind == "steps" else chunk.seconds > 0
        if not known and chunk.tokens_LSE.any():
            raise BadOption(f"{self._reader.name} does not say how many {kind} it spans; windows by file are possible.")
        start = self._steps_so_far if kind == "steps" else self._seconds_so_far
        self._steps_so_far += chunk.steps
        self._seconds_so_far += chunk.seconds
        return self._stretch(int(start // self._rule.size))

    def windows_of_tokens(self, chunk: TokenChunk) -> tuple[list[WindowKey], npt.NDArray[np.int64]]:
        """Return the windows that occur in a chunk, and for every token which of them it is in, int64 [T]."""
        kind = self._rule.kind
        if kind in ("file", "none"):
            key = WindowKey(self._number, 0, chunk.window or self._reader.name)
            return [key], np.zeros(len(chunk.request_id_T), dtype=np.int64)
        if kind == "seconds":
            raise BadOption(f"{self._reader.name} is a token trace without times; windows by file are possible.")
        if kind == "domain":
            values, window_T = np.unique(self._domain_order[chunk.domain_T], return_inverse=True)
            return [WindowKey(0, int(value), self._domain(int(value))) for value in values], window_T.astype(np.int64)
        if chunk.step_T.size and int(chunk.step_T.min()) < 0:
            raise BadOption(
                f"{self._reader.name} does not say in which engine step a token was; windows by file are possible."
            )
        values, window_T = np.unique(chunk.step_T // int(self._rule.size), return_inverse=True)
        return [self._stretch(int(value)) for value in values], window_T.astype(np.int64)

    def _domain(self, order: int) -> str:
        return self._domain_names[order] if order < len(self._domain_names) else "unknown domain"

    def _stretch(self, index: int) -> WindowKey:
        size, unit = self._rule.size, self._rule.kind
        first, last = index * size, (index + 1) * size - (1 if unit == "steps" else 0)
        return WindowKey(self._number, index, f"{unit} {first:g}-{last:g}")


def select_tokens(chunk: TokenChunk, chosen_T: npt.NDArray[np.bool_]) -> TokenChunk:
    """Return the tokens for which ``chosen_T`` [T] is true; the chunk itself if it is true for all."""
    if bool(chosen_T.all()):
        return chunk
    return TokenChunk(
        topk_LTK=chunk.topk_LTK[:, chosen_T],
        request_id_T=chunk.request_id_T[chosen_T],
        position_T=chunk.position_T[chosen_T],
        source_T=chunk.source_T[chosen_T],
        domain_T=chunk.domain_T[chosen_T],
        phase_T=chunk.phase_T[chosen_T],
        step_T=chunk.step_T[chosen_T],
        window=chunk.window,
    )


def last_requests(reader: TraceReader, share: float) -> npt.NDArray[np.int64]:
    """Return the ids of the last ``share`` of a token trace's requests, by first appearance; at least one, never all.

    Raises
    ------
    BadOption
        The trace has a single request.
    """
    order: dict[int, None] = {}
    for chunk in reader.chunks():
        if isinstance(chunk, TokenChunk):
            ids, first = np.unique(chunk.request_id_T, return_index=True)
            order.update(dict.fromkeys(ids[np.argsort(first)].tolist()))
    if len(order) == 1:
        raise BadOption(f"{reader.name} has a single request; to hold some out, at least two are needed.")
    return np.array(last_of(list(order), share), dtype=np.int64)


def last_of(items: Sequence[int], share: float) -> list[int]:
    """Return the last ``share`` of two or more items: at least one, and never all."""
    count = min(max(round(share * len(items)), 1), max(len(items) - 1, 0))
    return list(items[len(items) - count :])
