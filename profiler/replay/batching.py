"""The engine's clock: which rows of the trace every rank computes in which step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from profiler.replay.traffic import Traffic


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one step, those of rank 0 first.

    Attributes
    ----------
    row_T : ndarray
        int64 [T], rows of ``Traffic.experts_LRK``.
    source_T : ndarray
        int64 [T], home GPU of every row.
    decode_T : ndarray
        bool [T], whether a row is decoded (else it is part of a prompt).
    """

    row_T: npt.NDArray[np.int64]
    source_T: npt.NDArray[np.int64]
    decode_T: npt.NDArray[np.bool_]


@dataclass(eq=False)
class Run:
    """A request on its way.

    Attributes
    ----------
    row_T : ndarray
        int64 [T], rows of ``Traffic.experts_LRK``, the prompt's first.
    prompt_rows : int
        Rows that are computed in prefill, at least 1.
    computed : int
        Rows computed so far.
    """

    row_T: npt.NDArray[np.int64]
    prompt_rows: int
    computed: int = 0

    @property
    def finished(self) -> bool:
        return self.computed == len(self.row_T)


@dataclass
class _Rank:
    waiting: deque[Run] = field(default_factory=deque)
    prefilling: Run | None = None
    decoding: list[Run] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.waiting) + len(self.decoding) + (self.prefilling is not None)


class ContinuousBatching:
    """Serves the requests of a trace, over and over.

    Requests arrive in the trace's order, as soon as fewer than ``running_per_gpu`` x GPUs are in the system (a load
    generator with fixed concurrency), and queue at their home. In a step every rank does one pass: a prefill pass
    while prompts wait and fewer than ``running_per_gpu`` requests are running there, of at most ``prefill_tokens``
    rows, long prompts in pieces over several steps; else a decode pass with one row of each running request. As in
    SGLang with data-parallel attention, ranks choose their passes apart from each other but step together.

    Parameters
    ----------
    traffic : Traffic
    home_Q : ndarray
        int64 [Q].
    gpus : int
    prefill_tokens : int
        Rows in a prefill pass of one rank, at most.
    running_per_gpu : int
    passes : int or None
        How often the whole trace is served; None is for ever.
    """

    def __init__(
        self,
        traffic: Traffic,
        home_Q: npt.NDArray[np.int64],
        *,
        gpus: int,
        prefill_tokens: int,
        running_per_gpu: int,
        passes: int | None,
    ) -> None:
        self._traffic = traffic
        self._home_Q = home_Q
        self._prefill_tokens = prefill_tokens
        self._running_per_gpu = running_per_gpu
        self._ranks = [_Rank() for _ in range(gpus)]
        self._arrivals = self._arriving(passes)

    def next_batch(self) -> Batch | None:
        """Return the next step's rows, or None when every pass has been served."""
        self._admit()
        rows: list[npt.NDArray[np.int64]] = []
        sources: list[npt.NDArray[np.int64]] = []
        decodes: list[npt.NDArray[np.bool_]] = []
        for gpu, rank in enumerate(self._ranks):
            prefill = self._prefill_pass(rank)
            row_T = prefill if len(prefill) else self._decode_pass(rank)
            rows.append(row_T)
            sources.append(np.full(len(row_T), gpu, dtype=np.int64))
            decodes.append(np.full(len(row_T), not len(prefill)))
        row_T = np.concatenate(rows)
        return Batch(row_T, np.concatenate(sources), np.concatenate(decodes)) if len(row_T) else None

    def add(self, run: Run, *, home: int) -> None:
        """Queue a request from outside the trace; it takes part like any other."""
        self._ranks[home].waiting.append(run)

    def _arriving(self, passes: int | None) -> Iterator[tuple[int, Run]]:
        traffic, served = self._traffic, 0
        while passes is None or served < passes:
            for request in range(traffic.requests):
                first, rows = int(traffic.first_row_Q[request]), int(traffic.rows_Q[request])
                run = Run(np.arange(first, first + rows), int(traffic.prompt_rows_Q[request]))
                yield int(self._home_Q[request]), run
            served += 1

    def _admit(self) -> None:
        free = self._running_per_gpu * len(self._ranks) - sum(rank.requests for rank in self._ranks)
        for _ in range(free):
            arrival = next(self._arrivals, None)
            if arrival is None:
                return
            home, run = arrival
            self._ranks[home].waiting.append(run)

    def _prefill_pass(self, rank: _Rank) -> npt.NDArray[np.int64]:
        budget = self._prefill_tokens
        pieces = [np.empty(0, dtype=np.int64)]
        while budget:
            if rank.prefilling is None:
                if not rank.waiting or len(rank.decoding) >= self._running_per_gpu:
                    break
                rank.prefilling = rank.waiting.popleft()
            run = rank.prefilling
            piece_end = min(run.prompt_rows, run.computed + budget)
            pieces.append(run.row_T[run.computed : piece_end])
            budget -= piece_end - run.computed
            run.computed = piece_end
            if run.computed == run.prompt_rows:
                rank.prefilling = None
                if not run.finished:
                    rank.decoding.append(run)
        return np.concatenate(pieces)

    def _decode_pass(self, rank: _Rank) -> npt.NDArray[np.int64]:
        row_T = np.array([run.row_T[run.computed] for run in rank.decoding], dtype=np.int64)
        for run in rank.decoding:
            run.computed += 1
        rank.decoding = [run for run in rank.decoding if not run.finished]
        return row_T
