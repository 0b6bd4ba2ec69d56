"""Every token is counted once, at its home rank, and padding never."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiler.plugin.orders import OrderRefused
from profiler.plugin.own_rows import own_bounds, step_rows
from tests.profiler.plugin.views import dp_attention, plain, scattered

token_counts = st.lists(st.integers(0, 9), min_size=1, max_size=5)


@given(tokens=token_counts, padding=st.data())
def test_gathered_batch_with_uneven_padding(tokens: list[int], padding: st.DataObject) -> None:
    padded = [count + padding.draw(st.integers(0, 3)) for count in tokens]
    owner = [(rank, row) for rank, rows in enumerate(padded) for row in range(rows)]
    for rank, count in enumerate(tokens):
        view = dp_attention(rank, ranks=len(tokens))
        start, end = own_bounds(view, count, rows=sum(padded), padded_tokens=padded)
        assert owner[start:end] == [(rank, row) for row in range(count)]


@given(tokens=token_counts)
def test_gathered_batch_in_a_graph_is_evenly_padded(tokens: list[int]) -> None:
    longest = max(tokens)
    rows = torch.tensor(longest * len(tokens))
    for rank, count in enumerate(tokens):
        start, end = own_bounds(dp_attention(rank, ranks=len(tokens)), count, rows=rows, padded_tokens=None)
        assert (int(start), int(end)) == (rank * longest, rank * longest + count)


@given(tokens=st.integers(0, 40), ranks=st.integers(1, 5), in_graph=st.booleans())
def test_slices_of_an_attention_group_cover_its_tokens_once(tokens: int, ranks: int, in_graph: bool) -> None:
    rows_each = -(-tokens // ranks) + 1
    rows: Any = torch.tensor(rows_each) if in_graph else rows_each
    covered = []
    for rank in range(ranks):
        start, end = own_bounds(scattered(rank, ranks=ranks), tokens, rows=rows, padded_tokens=None)
        covered += [rank * rows_each + row for row in range(int(start), int(end))]
    assert covered == list(range(tokens))


def test_shared_batch_is_counted_by_one_rank() -> None:
    assert own_bounds(plain(0), 5, rows=8, padded_tokens=None) == (0, 5)
    assert [plain(rank).counts_its_rows for rank in (0, 1)] == [True, False]
    assert plain(0).sources == 1
    assert dp_attention(1, ranks=3).sources == 3
    assert dp_attention(1, ranks=3).source == 1


def test_rows_that_are_not_the_gathered_ones_are_refused() -> None:
    with pytest.raises(OrderRefused, match="saw 7 rows") as caught:
        own_bounds(dp_attention(0, ranks=2), 3, rows=7, padded_tokens=[3, 3])
    assert caught.value.code == "ROUTING_NOT_SEEN"


@dataclass
class Mode:
    name: str

    def is_extend(self) -> bool:
        return self.name in ("extend", "verify")

    def is_target_verify(self) -> bool:
        return self.name == "verify"

    def is_idle(self) -> bool:
        return self.name == "idle"


@dataclass
class Batch:
    forward_mode: Mode
    input_ids: torch.Tensor


@pytest.mark.parametrize(
    ("mode", "phase", "tokens"), [("extend", 0, 4), ("decode", 1, 4), ("verify", 1, 4), ("idle", 1, 0)]
)
def test_phase_of_a_step(mode: str, phase: int, tokens: int) -> None:
    rows = step_rows(Batch(Mode(mode), torch.zeros(4)))
    assert (rows.phase, rows.tokens) == (phase, tokens)
