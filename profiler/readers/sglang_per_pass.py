"""SGLang's recorder in mode ``per_pass``: slot counts of every forward pass, one file per rank."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from placement.notice import Notice
from profiler.errors import MissingRanks
from profiler.files import content_hash
from profiler.readers.counts import missing_ranks_notice
from profiler.readers.layer_rows import decoder_layer_rows
from profiler.readers.options import ReadOptions
from profiler.readers.sglang_ids import ids_are_experts, ids_are_experts_notice, map_changed
from profiler.readers.sglang_map import SlotMaps, identity_maps
from profiler.readers.sglang_map_change import SlotBlocks, layout_change
from profiler.readers.sglang_ranks import PassGroup, RankFiles
from profiler.readers.sglang_repeats import (
    counted_by,
    counted_by_destination_notice,
    counts_of_rank,
    counts_repeated_notice,
)
from profiler.trace import CountChunk, TraceHeader


class SglangPerPassReader:
    """A :class:`profiler.trace.TraceReader` over the rank files of a per_pass recording.

    Sources are the ranks, where all ranks have a file and each counted its own tokens.

    Parameters
    ----------
    ranks : RankFiles
    maps : SlotMaps
    options : ReadOptions

    Raises
    ------
    MapChanged
        The layout changed while recording and no history of it was given.
    """

    def __init__(self, ranks: RankFiles, maps: SlotMaps, options: ReadOptions) -> None:
        self._ranks = ranks
        self._options = options
        blocks = self._survey(maps)
        slots_LP = blocks.counts_BLP.sum(axis=0)
        experts_given = ids_are_experts(slots_LP, maps.last)
        self._maps = identity_maps(maps) if experts_given else maps
        if not self._maps.from_history:
            found = layout_change(blocks, self._maps.last)
            if found is not None:
                raise map_changed(ranks.name, found)
        self._counted_by = counted_by(ranks, self._maps)
        self._rows = decoder_layer_rows(
            name=ranks.name,
            row_count=len(slots_LP),
            has_traffic=[bool(busy) for busy in slots_LP.any(axis=1)],
            model=options.model,
        )
        everyone = self._counted_by == "every rank"
        self._missing = () if everyone else ranks.missing
        self._has_sources = self._counted_by == "source" and len(ranks.files) > 1 and not self._missing
        self._notices = (
            *ranks.notices,
            *self._rows.notices,
            *([ids_are_experts_notice(ranks.name, maps.last)] if experts_given else []),
            *([counts_repeated_notice(ranks.name)] if everyone else []),
            *([counted_by_destination_notice(ranks.name)] if self._counted_by == "destination" else []),
            *([missing_ranks_notice(ranks.name, self._missing)] if self._missing else []),
        )
        model = options.model
        self._header = TraceHeader(
            kind="counts",
            layers=self._rows.layers,
            experts=maps.experts,
            top_k=model.top_k if model else None,
            source_ranks=len(ranks.files) if self._has_sources else None,
            engine="sglang",
            model=model.name if model else "",
        )

    def _survey(self, maps: SlotMaps) -> SlotBlocks:
        layers, slots = maps.last.map_LP.shape
        blocks = SlotBlocks(passes=len(self._ranks.groups), layers=layers, slots=slots)
        for index, group in enumerate(self._ranks.groups):
            for _, record in group.records:
                if record.counts_LP is not None:
                    blocks.of_pass(index)[...] += record.counts_LP
        return blocks

    @property
    def header(self) -> TraceHeader:
        return self._header

    @property
    def name(self) -> str:
        return self._ranks.name

    @cached_property
    def content_hash(self) -> str:
        return content_hash([file.path for file in self._ranks.files])

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._notices

    def facts(self) -> dict[str, object]:
        """Return what this format says beyond the header."""
        return {
            "recorder_mode": "per_pass",
            "ranks": list(self._ranks.ranks),
            "missing_ranks": list(self._ranks.missing),
            "passes": len(self._ranks.groups),
            "slots": int(self._maps.last.map_LP.shape[1]),
            "layouts": len(self._maps.periods),
            "counted_by": self._counted_by,
        }

    def require_complete(self) -> None:
        """Raise :class:`MissingRanks` where files of some ranks are missing and the caller did not allow it."""
        if self._missing and not self._options.allow_partial:
            raise MissingRanks(missing_ranks_notice(self.name, self._missing).detail)

    def chunks(self) -> Iterator[CountChunk]:
        """Yield one chunk per pass with traffic, all of one window; one chunk of zeros where there was none."""
        idle = True
        for group in self._ranks.groups:
            tokens_SLE = self._tokens(group)
            if tokens_SLE.any():
                idle = False
                yield self._chunk(tokens_SLE, steps=1)
        if idle:
            sources = self._header.source_ranks or 1
            shape = (sources, len(self._maps.last.map_LP), self._maps.experts)
            yield self._chunk(np.zeros(shape, dtype=np.int64), steps=0)

    def _tokens(self, group: PassGroup) -> npt.NDArray[np.int64]:
        """Return the pass by source, expert counts int64 [S, L, E]."""
        period = self._maps.at(group.pass_id)
        layers, slots = period.map_LP.shape
        ranks = self._ranks.ranks[:1] if self._counted_by == "every rank" else self._ranks.ranks
        by_rank = [counts_of_rank(group, rank) for rank in ranks]
        zeros_LP = np.zeros((layers, slots), dtype=np.int64)
        counts_SLP = [zeros_LP if counts_LP is None else counts_LP for counts_LP in by_rank]
        if not self._has_sources:
            counts_SLP = [sum(counts_SLP[1:], start=counts_SLP[0])]
        return np.stack([period.experts_of_counts(counts_LP) for counts_LP in counts_SLP])

    def _chunk(self, tokens_SLE: npt.NDArray[np.int64], *, steps: int) -> CountChunk:
        tokens_LSE = self._rows.place(np.ascontiguousarray(tokens_SLE.transpose(1, 0, 2)))
        return CountChunk(window=self.name, tokens_LSE=tokens_LSE, steps=steps)
