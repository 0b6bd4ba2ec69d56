"""SGLang's recorder in mode ``per_pass``: slot counts of every forward pass, one file per rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from profiler.readers.layer_rows import decoder_layer_rows
from profiler.readers.options import ReadOptions
from profiler.readers.sglang_ids import ids_are_experts, ids_are_experts_notice, map_changed
from profiler.readers.sglang_map import SlotMaps, identity_maps
from profiler.readers.sglang_map_change import SlotBlocks, layout_change
from profiler.readers.sglang_rank_reader import RankFilesReader
from profiler.readers.sglang_ranks import PassGroup, RankFiles
from profiler.readers.sglang_repeats import (
    counted_by,
    counted_by_destination_notice,
    counts_of_rank,
    counts_repeated_notice,
)
from profiler.trace import CountChunk, TraceHeader


class SglangPerPassReader(RankFilesReader):
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
        blocks = _survey(ranks, maps)
        slots_LP = blocks.counts_BLP.sum(axis=0)
        notices = ranks.notices
        if ids_are_experts(slots_LP, maps.last):
            notices += (ids_are_experts_notice(ranks.name, maps.last),)
            maps = identity_maps(maps)
        found = None if maps.from_history else layout_change(blocks, maps.last)
        if found is not None:
            raise map_changed(ranks.name, found)
        self._counted_by = counted_by(ranks, maps)
        if self._counted_by == "every rank":
            notices += (counts_repeated_notice(ranks.name),)
        elif self._counted_by == "destination":
            notices += (counted_by_destination_notice(ranks.name),)
        self._rows = decoder_layer_rows(
            name=ranks.name,
            row_count=len(slots_LP),
            has_traffic=[bool(busy) for busy in slots_LP.any(axis=1)],
            model=options.model,
        )
        missing = () if self._counted_by == "every rank" else ranks.missing
        self._has_sources = self._counted_by == "source" and len(ranks.files) > 1 and not missing
        model = options.model
        header = TraceHeader(
            kind="counts",
            layers=self._rows.layers,
            experts=maps.experts,
            top_k=model.top_k if model else None,
            source_ranks=len(ranks.files) if self._has_sources else None,
            engine="sglang",
            model=model.name if model else "",
        )
        super().__init__(
            ranks=ranks,
            maps=maps,
            options=options,
            header=header,
            missing=missing,
            notices=(*notices, *self._rows.notices),
        )

    def facts(self) -> dict[str, object]:
        """Return what this format says beyond the header."""
        return {"recorder_mode": "per_pass", **super().facts(), "counted_by": self._counted_by}

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


def _survey(ranks: RankFiles, maps: SlotMaps) -> SlotBlocks:
    layers, slots = maps.last.map_LP.shape
    blocks = SlotBlocks(passes=len(ranks.groups), layers=layers, slots=slots)
    for index, group in enumerate(ranks.groups):
        for _, record in group.records:
            if record.counts_LP is not None:
                blocks.of_pass(index)[...] += record.counts_LP
    return blocks
