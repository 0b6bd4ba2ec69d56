"""One look through a per_token recording before it is streamed: what its header needs, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.readers.sglang_first_tokens import FirstTokens
from profiler.readers.sglang_map import SHARED_EXPERT, MapPeriod, SlotMaps
from profiler.readers.sglang_map_change import SlotBlocks, layout_change
from profiler.readers.sglang_ranks import PassGroup, RankFiles
from profiler.readers.sglang_records import PassRecord
from profiler.readers.sglang_repeats import rows_to_keep
from profiler.trace import NO_EXPERT

IDS_PER_SLICE = 2**20
"""Ids that are worked on at a time."""
_CONTRADICTORY_SHARE = 0.01
"""Of the tokens. A router never chooses an expert twice, so two slots of one token never hold the same expert. Where
even slots are repeated, ids are padding or made up, and say nothing about layouts."""


@dataclass(frozen=True, eq=False)
class TokenSurvey:
    """What a per_token recording holds.

    Attributes
    ----------
    top_k : int
        Most routed experts of any token, at least 1.
    kept_rows, all_rows : int
        Tokens that are read, and tokens in all files.
    shared_R : ndarray
        int64 [recorded layers], tokens of fused shared experts.
    busy_R : ndarray
        bool [recorded layers], whether anything was routed.
    counts_LP : ndarray
        int64 [recorded layers, P], tokens per slot.
    disagreeing_passes : int
        Passes whose own slot counts do not fit their ids.
    change : str or None
        Evidence that the layout changed, as the end of a sentence.
    """

    top_k: int
    kept_rows: int
    all_rows: int
    shared_R: npt.NDArray[np.int64]
    busy_R: npt.NDArray[np.bool_]
    counts_LP: npt.NDArray[np.int64]
    disagreeing_passes: int
    change: str | None


def kept_records(group: PassGroup, *, repeated: bool) -> Iterator[tuple[int, PassRecord]]:
    """Yield rank and record of a pass, without those that hold the rows of another rank."""
    if not repeated:
        yield from group.records
    elif (kept := rows_to_keep(group)) is not None:
        yield kept


def id_slices(record: PassRecord) -> Iterator[tuple[slice, npt.NDArray[np.signedinteger[Any]]]]:
    """Yield the rows of a record and their ids in pieces, so that working on them takes little beside the file."""
    if record.ids_LTX is None:
        return
    layers, tokens, columns = record.ids_LTX.shape
    rows_per_slice = max(1, IDS_PER_SLICE // (layers * columns))
    for start in range(0, tokens, rows_per_slice):
        rows = slice(start, min(start + rows_per_slice, tokens))
        yield rows, record.ids_LTX[:, rows]


def survey_tokens(ranks: RankFiles, maps: SlotMaps, *, repeated: bool) -> TokenSurvey:
    """Look through the rows that will be read."""
    layers, slots = maps.last.map_LP.shape
    blocks = SlotBlocks(passes=len(ranks.groups), layers=layers, slots=slots)
    shared_R = np.zeros(layers, dtype=np.int64)
    first_tokens = FirstTokens()
    top_k, kept_rows, disagreeing = 1, 0, 0
    repeats = np.zeros(2, dtype=np.int64)
    for index, group in enumerate(ranks.groups):
        period = maps.at(group.pass_id)
        for _, record in kept_records(group, repeated=repeated):
            counts_LP = np.zeros((layers, slots), dtype=np.int64)
            for rows, ids_LTX in id_slices(record):
                counts_LP += _slot_counts(ids_LTX, slots)
                sorted_LTX = np.sort(period.experts_of_ids(ids_LTX), axis=-1)
                shared_R += (sorted_LTX == SHARED_EXPERT).sum(axis=(1, 2))
                top_k = max(top_k, int((sorted_LTX < SHARED_EXPERT).sum(axis=-1).max()))
                repeats += _repeats(sorted_LTX, ids_LTX)
                first_tokens.observe(
                    sorted_LTX, token_T=record.token_T[rows], position_T=record.position_T[rows], step=group.step
                )
            blocks.of_pass(index)[...] += counts_LP
            disagreeing += record.counts_LP is not None and not np.array_equal(record.counts_LP, counts_LP)
            kept_rows += record.tokens
    counts_LP = blocks.counts_BLP.sum(axis=0)
    return TokenSurvey(
        top_k=top_k,
        kept_rows=kept_rows,
        all_rows=sum(record.tokens for group in ranks.groups for _, record in group.records),
        shared_R=shared_R,
        busy_R=counts_LP.any(axis=1),
        counts_LP=counts_LP,
        disagreeing_passes=disagreeing,
        change=_change(blocks, maps, repeats, kept_rows, first_tokens, ranks.groups),
    )


def _change(
    blocks: SlotBlocks,
    maps: SlotMaps,
    repeats: npt.NDArray[np.int64],
    rows: int,
    first_tokens: FirstTokens,
    groups: Sequence[PassGroup],
) -> str | None:
    on_two_slots, on_same_slot = (int(count) for count in repeats)
    if on_two_slots > max(_CONTRADICTORY_SHARE * rows, on_same_slot):
        return f"read with it, {on_two_slots} of {rows} tokens have an expert twice"
    if maps.from_history:
        return None
    turn = first_tokens.turning_step()
    if turn is not None:
        return f"from pass {groups[turn].pass_id} on the same first tokens are found on other slots"
    return layout_change(blocks, maps.last)


def _slot_counts(ids_LTX: npt.NDArray[np.signedinteger[Any]], slots: int) -> npt.NDArray[np.int64]:
    layers = len(ids_LTX)
    # One cell more on either side of a row's slots, for padding and for ids behind the last slot.
    cells = np.minimum(ids_LTX, slots) + (np.arange(layers, dtype=np.int64) * (slots + 2) + 1)[:, None, None]
    return np.bincount(cells.ravel(), minlength=layers * (slots + 2)).reshape(layers, slots + 2)[:, 1:-1]


def _repeats(sorted_LTX: npt.NDArray[np.uint16], ids_LTX: npt.NDArray[np.signedinteger[Any]]) -> npt.NDArray[np.int64]:
    """Count tokens that have an expert twice in some layer, int64 [2]: on two slots, and on one and the same slot."""
    twice_T = _has_twice(sorted_LTX, below=int(SHARED_EXPERT))
    if not twice_T.any():
        return np.zeros(2, dtype=np.int64)
    same_slot_T = _has_twice(np.sort(ids_LTX[:, twice_T], axis=-1), below=np.iinfo(ids_LTX.dtype).max)
    return np.array([(~same_slot_T).sum(), same_slot_T.sum()])


def _has_twice(sorted_LTX: npt.NDArray[np.integer[Any]], *, below: int) -> npt.NDArray[np.bool_]:
    later_LTX, earlier_LTX = sorted_LTX[:, :, 1:], sorted_LTX[:, :, :-1]
    twice_T: npt.NDArray[np.bool_] = (
        ((later_LTX == earlier_LTX) & (later_LTX >= 0) & (later_LTX < below)).any(axis=2).any(axis=0)
    )
    return twice_T


def compact_experts(
    ids_LTX: npt.NDArray[np.signedinteger[Any]], period: MapPeriod, top_k: int
) -> npt.NDArray[np.uint16]:
    """Return the routed experts of every token, uint16 [L, T, K], filler behind them and in place of shared experts."""
    experts_LTX = period.experts_of_ids(ids_LTX)
    if experts_LTX.shape[2] < top_k:
        more = top_k - experts_LTX.shape[2]
        experts_LTX = np.pad(experts_LTX, ((0, 0), (0, 0), (0, more)), constant_values=NO_EXPERT)
    unused_LTX = experts_LTX >= SHARED_EXPERT
    if unused_LTX[:, :, :top_k].any() or not unused_LTX[:, :, top_k:].all():
        order_LTX = np.argsort(unused_LTX, axis=-1, kind="stable")
        experts_LTX = np.take_along_axis(experts_LTX, order_LTX, axis=-1)
    experts_LTK = experts_LTX[:, :, :top_k]
    return np.where(experts_LTK >= SHARED_EXPERT, NO_EXPERT, experts_LTK)
