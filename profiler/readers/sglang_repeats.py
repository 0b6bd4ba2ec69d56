"""Do the ranks' files hold different tokens, or the same ones again?

Only behind an all-to-all backend does a rank route its own tokens alone. Without one every rank routes the whole
gathered batch: ``per_pass`` counts are then equal on all ranks, and ``per_token`` keeps as many of the first gathered
rows as the rank had tokens, so that the rows of every rank are those of the first rank with tokens. In low-latency
all-to-all modes a rank counts what arrives at its own slots, wherever it came from.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from placement.notice import Notice
from profiler.readers.rank_files import SOURCES_REPEATED
from profiler.readers.sglang_map import SlotMaps
from profiler.readers.sglang_ranks import PassGroup, RankFiles
from profiler.readers.sglang_records import PassRecord
from profiler.readers.sglang_requests import is_prefill

CountedBy = Literal["source", "destination", "every rank"]
"""Whose tokens a rank counts: its own, those that arrive at its slots, or all."""

_SAME_SHARE = 0.9
"""Of the compared rows. Ranks with tokens of their own agree in under 1 % of them, by chance."""
_DIFFERENT_ROWS_ARE_ENOUGH = 64
_ROWS_COMPARED = 4096
"""Of one pass, at most."""


def repeats_rows(ranks: RankFiles, maps: SlotMaps) -> bool:
    """Whether all ranks of a per_token recording hold rows of the same gathered batch.

    Rows are compared as experts, for ranks may pick different replicas for one token. Where all rows are alike, as in
    made-up input, nothing can be concluded and they are taken as different tokens.
    """
    if len(ranks.files) < 2:
        return False
    first, *others = ranks.ranks
    compared = {rank: [0, 0] for rank in others}
    distinct: set[bytes] = set()
    for group in ranks.groups:
        by_rank = group.first_of_each_rank()
        for rank in others:
            same, rows = _same_rows(by_rank.get(first), by_rank.get(rank), group, maps, distinct)
            compared[rank][0] += same
            compared[rank][1] += rows
            if compared[rank][1] - compared[rank][0] > _DIFFERENT_ROWS_ARE_ENOUGH + compared[rank][0]:
                return False
    seen = [(same, rows) for same, rows in compared.values() if rows]
    return bool(seen) and len(distinct) > 1 and all(same >= _SAME_SHARE * rows for same, rows in seen)


def _same_rows(
    one: PassRecord | None, other: PassRecord | None, group: PassGroup, maps: SlotMaps, distinct: set[bytes]
) -> tuple[int, int]:
    if one is None or other is None or one.ids_LTX is None or other.ids_LTX is None:
        return 0, 0
    rows = min(one.tokens, other.tokens, _ROWS_COMPARED)
    period = maps.at(group.pass_id)
    one_LTX, other_LTX = (
        np.sort(period.experts_of_ids(ids_LTX[:, :rows]), axis=-1) for ids_LTX in (one.ids_LTX, other.ids_LTX)
    )
    if len(distinct) < 2:
        distinct.update(one_LTX[:, row].tobytes() for row in range(min(rows, 64)))
    return int((one_LTX == other_LTX).all(axis=(0, 2)).sum()), rows


def rows_to_keep(group: PassGroup) -> tuple[int, PassRecord] | None:
    """Choose, in a recording whose ranks repeat each other's rows, the rank whose rows are its own.

    They are the rows of the first rank. Where it had no tokens, they are those of the next one that had, but only in
    prefill: other passes may be padded to equal length, and the rows of that rank are then the first one's padding.
    """
    for index, (rank, record) in enumerate(group.records):
        if record.tokens:
            own = index == 0 or (is_prefill(record.forward_mode) and not _all_alike(record))
            return (rank, record) if own else None
    return None


def _all_alike(record: PassRecord) -> bool:
    """Whether every token has the experts of the first: what rows of padding look like."""
    ids_LTX = record.ids_LTX
    return ids_LTX is not None and record.tokens > 1 and bool((ids_LTX == ids_LTX[:, :1]).all())


def rows_repeated_notice(name: str, kept_rows: int, all_rows: int) -> Notice:
    return Notice(
        SOURCES_REPEATED,
        f"{name}: the ranks hold rows of the same gathered batch (no all-to-all backend), so a token's home GPU cannot "
        f"be told; {kept_rows} of {all_rows} rows are kept, once each, and sources are unknown. For sources record "
        "with return_routed_experts.",
    )


def counted_by(ranks: RankFiles, maps: SlotMaps) -> CountedBy:
    """Find out whose tokens the ranks of a per_pass recording counted.

    Returns
    -------
    "every rank"
        All ranks have the same counts in every pass: each counted all tokens.
    "destination"
        No rank counted a slot of another GPU, in any layer or pass.
    "source"
        Neither; also for a single file.
    """
    if len(ranks.files) < 2:
        return "source"
    slots_of = _own_slots(ranks, maps)
    equal, own, busy = True, slots_of is not None, False
    for group in ranks.groups:
        period = maps.at(group.pass_id)
        counts = [counts_of_rank(group, rank) for rank in ranks.ranks]
        present = [counts_LP for counts_LP in counts if counts_LP is not None]
        busy = busy or any(counts_LP.any() for counts_LP in present)
        first_LE = period.experts_of_counts(present[0])
        equal = equal and len(present) == len(counts)
        equal = equal and all(np.array_equal(period.experts_of_counts(counts_LP), first_LE) for counts_LP in present)
        if own and slots_of is not None:
            own = all(
                counts_LP is None or not np.delete(counts_LP, np.r_[slots_of[rank]], axis=1).any()
                for rank, counts_LP in zip(ranks.ranks, counts, strict=True)
            )
        if not equal and not own:
            return "source"
    if not busy:
        return "source"
    return "every rank" if equal else "destination"


def counts_of_rank(group: PassGroup, rank: int) -> npt.NDArray[np.int64] | None:
    """Add up what a rank counted in a pass, int64 [L, P]; None where it recorded nothing."""
    counts = [record.counts_LP for owner, record in group.records if owner == rank and record.counts_LP is not None]
    return sum(counts[1:], start=counts[0]) if counts else None


def _own_slots(ranks: RankFiles, maps: SlotMaps) -> dict[int, slice] | None:
    gpus = max(ranks.ranks) + 1
    slots_per_gpu, rest = divmod(maps.last.map_LP.shape[1], gpus)
    return None if rest else {rank: slice(rank * slots_per_gpu, (rank + 1) * slots_per_gpu) for rank in ranks.ranks}


def counts_repeated_notice(name: str) -> Notice:
    return Notice(
        SOURCES_REPEATED,
        f"{name}: the ranks have equal counts in every pass, for each counted all tokens (no all-to-all backend); one "
        "rank's are kept and sources are unknown.",
    )


def counted_by_destination_notice(name: str) -> Notice:
    return Notice(
        "SOURCES_UNKNOWN",
        f"{name}: every rank counted its own slots only, that is tokens that arrived there; they are added up and "
        "sources are unknown.",
    )
