"""Requests put together from positions: what a scheduler runs is found again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.readers.sglang_records import PassRecord
from profiler.readers.sglang_requests import RequestTracker

EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY = 1, 2, 3, 4, 5


def record(mode: int, positions: Sequence[int], lengths: Sequence[int] = ()) -> PassRecord:
    tokens = len(positions)
    return PassRecord(
        pass_id=0,
        counts_LP=None,
        ids_LTX=np.zeros((1, tokens, 1), dtype=np.int32),
        position_T=np.array(positions, dtype=np.int32),
        token_T=np.zeros(tokens, dtype=np.int32),
        sequence_tokens=tuple(lengths),
        forward_mode=mode,
    )


def assign(*records: PassRecord) -> list[list[int]]:
    tracker = RequestTracker(itertools.count())
    return [tracker.assign(entry)[0].tolist() for entry in records]


def test_a_sequence_of_a_prefill_pass_is_a_request() -> None:
    assert assign(record(EXTEND, [0, 1, 2, 0, 1], [3, 2])) == [[0, 0, 0, 1, 1]]


def test_a_cached_prefix_does_not_make_it_another_request() -> None:
    assert assign(record(EXTEND, [0, 1, 2], [3]), record(EXTEND, [64, 65], [2])) == [[0, 0, 0], [1, 1]]


def test_decode_tokens_go_on_with_their_requests() -> None:
    found = assign(record(EXTEND, [0, 1, 0, 1, 2], [2, 3]), record(DECODE, [2, 3]), record(DECODE, [3, 4]))
    assert found == [[0, 0, 1, 1, 1], [0, 1], [0, 1]]


def test_requests_end_and_join() -> None:
    found = assign(
        record(EXTEND, [0, 1, 0, 1, 2], [2, 3]),
        record(DECODE, [2, 3]),
        record(EXTEND, [0, 0, 1], [1, 2]),
        record(DECODE, [4, 1, 2]),  # the first has ended
        record(DECODE, [2, 3]),
    )
    assert found[1:] == [[0, 1], [2, 3, 3], [1, 2, 3], [2, 3]]


def test_a_long_prompt_in_pieces_is_one_request() -> None:
    found = assign(
        record(EXTEND, [0, 1, 0, 1, 2], [2, 3]),
        record(EXTEND, [3, 4, 5], [3]),  # goes on where the last sequence stopped
        record(EXTEND, [6, 0], [1, 1]),
        record(DECODE, [2, 7, 1]),
    )
    assert found == [[0, 0, 1, 1, 1], [1, 1, 1], [1, 2], [0, 1, 2]]


def test_a_long_prompt_goes_on_after_others_have_decoded() -> None:
    found = assign(
        record(EXTEND, [0, 1, 0, 1, 2], [2, 3]),
        record(DECODE, [2]),  # the second is still in prefill
        record(EXTEND, [3, 4], [2]),
        record(DECODE, [3, 5]),
    )
    assert found == [[0, 0, 1, 1, 1], [0], [1, 1], [0, 1]]


def test_mixed_passes_hold_both_phases() -> None:
    tracker = RequestTracker(itertools.count())
    tracker.assign(record(EXTEND, [0, 1, 2], [3]))
    request_T, phase_T = tracker.assign(record(MIXED, [0, 1, 3], [2, 1]))
    assert request_T.tolist() == [1, 1, 0]
    assert phase_T.tolist() == [1, 1, 2]


def test_a_token_of_no_known_request_is_a_new_one() -> None:
    """The recording began while requests were running."""
    assert assign(record(DECODE, [40, 41, 41]), record(DECODE, [41, 42, 42])) == [[0, 1, 2], [0, 1, 2]]


def test_verification_passes_are_stretches_of_decode() -> None:
    tracker = RequestTracker(itertools.count())
    request_T, phase_T = tracker.assign(record(TARGET_VERIFY, [7, 8, 9, 30, 31, 32]))
    assert request_T.tolist() == [0, 0, 0, 1, 1, 1]
    assert phase_T.tolist() == [2] * 6


def test_lengths_that_do_not_fit_are_not_trusted() -> None:
    assert assign(record(EXTEND, [0, 1, 0], [2])) == [[0, 0, 1]]
    assert assign(record(EXTEND, [0, 1], [0, 2, 0])) == [[0, 0]]


def test_idle_passes_change_nothing() -> None:
    assert assign(record(EXTEND, [0], [1]), record(IDLE, []), record(DECODE, [1])) == [[0], [], [0]]


@dataclass
class Scheduler:
    """Continuous batching with chunked prefill, as an engine does it; remembers which token was whose."""

    budget: int
    waiting: list[tuple[int, int, int]]  # request, prompt tokens, output tokens
    running: list[list[int]] = field(default_factory=list)  # request, next position, tokens left
    in_prefill: tuple[int, int, int, int] | None = None  # request, next position, prompt, output

    def passes(self) -> list[tuple[PassRecord, list[int]]]:
        done = []
        while self.waiting or self.in_prefill or self.running:
            done.append(self._prefill() if self.waiting or self.in_prefill else self._decode())
            if self.running and len(done) % 2:
                done.append(self._decode())
        return done

    def _prefill(self) -> tuple[PassRecord, list[int]]:
        positions: list[int] = []
        owners: list[int] = []
        lengths: list[int] = []
        left = self.budget
        while left and (self.in_prefill or self.waiting):
            if self.in_prefill is None:
                request, prompt, output = self.waiting.pop(0)
                self.in_prefill = (request, 0, prompt, output)
            request, start, prompt, output = self.in_prefill
            length = min(left, prompt - start)
            positions += range(start, start + length)
            owners += [request] * length
            lengths.append(length)
            left -= length
            self.in_prefill = (request, start + length, prompt, output) if start + length < prompt else None
            if self.in_prefill is None and output > 1:
                self.running.append([request, prompt, output - 1])
        return record(EXTEND, positions, lengths), owners

    def _decode(self) -> tuple[PassRecord, list[int]]:
        positions = [position for _, position, _ in self.running]
        owners = [request for request, _, _ in self.running]
        self.running = [[request, position + 1, left - 1] for request, position, left in self.running if left > 1]
        return record(DECODE, positions), owners


def found_again(sizes: Sequence[tuple[int, int]], budget: int) -> dict[int, set[int]]:
    """Return the true requests behind every request found, whose positions must rise one by one."""
    waiting = [(request, prompt, output) for request, (prompt, output) in enumerate(sizes)]
    tracker = RequestTracker(itertools.count())
    next_position: dict[int, int] = {}
    owners_of: dict[int, set[int]] = {}
    for entry, owners in Scheduler(budget, waiting).passes():
        ids = tracker.assign(entry)[0].tolist()
        for request, owner, position in zip(ids, owners, entry.position_T.tolist(), strict=True):
            assert next_position.get(request, position) == position
            next_position[request] = position + 1
            owners_of.setdefault(request, set()).add(owner)
    return owners_of


@settings(deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12),
    budget=st.integers(4, 64),
)
def test_as_many_requests_are_found_as_ran(sizes: list[tuple[int, int]], budget: int) -> None:
    """Neighbours at one position may be taken for each other, but none is split and no two are joined for long."""
    assert len(found_again(sizes, budget)) == len(sizes)


@settings(deadline=None)
@given(outputs=st.lists(st.integers(1, 12), min_size=1, max_size=10), budget=st.integers(10, 200), data=st.data())
def test_requests_at_different_positions_are_found_exactly(
    outputs: list[int], budget: int, data: st.DataObject
) -> None:
    prompts = data.draw(st.permutations([20 * index + 5 for index in range(len(outputs))]))
    owners_of = found_again(list(zip(prompts, outputs, strict=True)), budget)
    assert sorted(map(sorted, owners_of.values())) == [[request] for request in range(len(outputs))]
