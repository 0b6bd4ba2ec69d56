"""SGLang's recorder in mode ``per_token``: slot ids of every token and layer, one file per rank."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from placement.notice import Notice
from profiler.errors import InputsDisagree, MissingRanks
from profiler.files import content_hash
from profiler.readers.counts import missing_ranks_notice, shared_experts_notice
from profiler.readers.layer_rows import LayerRows, decoder_layer_rows
from profiler.readers.options import ReadOptions
from profiler.readers.sglang_ids import ids_are_experts, ids_are_experts_notice, map_changed
from profiler.readers.sglang_map import MapPeriod, SlotMaps, identity_maps
from profiler.readers.sglang_ranks import RankFiles
from profiler.readers.sglang_records import PassRecord
from profiler.readers.sglang_repeats import repeats_rows, rows_repeated_notice
from profiler.readers.sglang_requests import RequestTracker
from profiler.readers.sglang_survey import TokenSurvey, compact_experts, kept_records, survey_tokens
from profiler.trace import NO_EXPERT, TokenChunk, TraceHeader

IDS_PER_CHUNK = 2**20
"""Routed ids in one chunk: passes of a few tokens are joined, so that no cost per chunk matters."""


class SglangPerTokenReader:
    """A :class:`profiler.trace.TraceReader` over the rank files of a per_token recording.

    Sources are the ranks, where all ranks have a file and their rows are their own. Steps are passes. Request ids are
    put together from positions, see :class:`profiler.readers.sglang_requests.RequestTracker`; the tokens of a request
    come in order, in decode passes between those of others.

    Parameters
    ----------
    ranks : RankFiles
    maps : SlotMaps
    options : ReadOptions

    Raises
    ------
    MapChanged
        The layout changed while recording, and no history of it was given or it does not explain the ids.
    InputsDisagree
        A token has more experts than the model allows.
    """

    def __init__(self, ranks: RankFiles, maps: SlotMaps, options: ReadOptions) -> None:
        self._ranks = ranks
        self._options = options
        self._repeated = repeats_rows(ranks, maps)
        survey = survey_tokens(ranks, maps, repeated=self._repeated)
        experts_given = ids_are_experts(survey.counts_LP, maps.last)
        if experts_given:
            original, maps = maps, identity_maps(maps)
            survey = survey_tokens(ranks, maps, repeated=self._repeated)
        if survey.change is not None:
            raise map_changed(ranks.name, survey.change)
        self._maps, self._survey = maps, survey
        self._rows: LayerRows = decoder_layer_rows(
            name=ranks.name,
            row_count=len(survey.busy_R),
            has_traffic=[bool(busy) for busy in survey.busy_R],
            model=options.model,
        )
        self._missing = () if self._repeated else ranks.missing
        self._has_sources = not self._repeated and len(ranks.files) > 1 and not self._missing
        self._notices = (
            *ranks.notices,
            *self._rows.notices,
            *([ids_are_experts_notice(ranks.name, original.last)] if experts_given else []),
            *self._row_notices(survey),
        )
        self._header = self._make_header(survey)

    def _row_notices(self, survey: TokenSurvey) -> Iterator[Notice]:
        name = self._ranks.name
        if self._repeated:
            yield rows_repeated_notice(name, survey.kept_rows, survey.all_rows)
        if self._missing:
            yield missing_ranks_notice(name, self._missing)
        if survey.shared_R.any():
            yield shared_experts_notice(name, self._maps.last.map_LP.shape[1], int(survey.shared_R.sum()))
        if survey.disagreeing_passes:
            yield Notice(
                "COUNTS_DISAGREE",
                f"{name}: in {survey.disagreeing_passes} passes global_physical_count is not what topk_ids_of_layer "
                "adds up to; the ids are used.",
            )

    def _make_header(self, survey: TokenSurvey) -> TraceHeader:
        model = self._options.model
        if model is not None and survey.top_k > model.top_k:
            raise InputsDisagree(
                f"{self.name} has tokens with {survey.top_k} experts, the model has top-k {model.top_k}: is it the "
                "same model?"
            )
        return TraceHeader(
            kind="tokens",
            layers=self._rows.layers,
            experts=self._maps.experts,
            top_k=model.top_k if model is not None else survey.top_k,
            source_ranks=len(self._ranks.files) if self._has_sources else None,
            engine="sglang",
            model=model.name if model else "",
        )

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
            "recorder_mode": "per_token",
            "ranks": list(self._ranks.ranks),
            "missing_ranks": list(self._ranks.missing),
            "passes": len(self._ranks.groups),
            "tokens": self._survey.kept_rows,
            "tokens_left_out": self._survey.all_rows - self._survey.kept_rows,
            "slots": int(self._maps.last.map_LP.shape[1]),
            "layouts": len(self._maps.periods),
            "shared_expert_tokens": self._survey.shared_R.tolist(),
        }

    def require_complete(self) -> None:
        """Raise :class:`MissingRanks` where files of some ranks are missing and the caller did not allow it."""
        if self._missing and not self._options.allow_partial:
            raise MissingRanks(missing_ranks_notice(self.name, self._missing).detail)

    def chunks(self) -> Iterator[TokenChunk]:
        """Yield the tokens pass by pass, within a pass rank by rank; tokens without any routed expert are left out."""
        new_ids = itertools.count()
        trackers: defaultdict[int, RequestTracker] = defaultdict(lambda: RequestTracker(new_ids))
        waiting: list[TokenChunk] = []
        waiting_ids = 0
        for group in self._ranks.groups:
            period = self._maps.at(group.pass_id)
            for rank, record in kept_records(group, repeated=self._repeated):
                chunk = self._chunk(record, rank, group.step, period, trackers[rank])
                waiting.append(chunk)
                waiting_ids += chunk.topk_LTK.size
                if waiting_ids >= IDS_PER_CHUNK:
                    yield join_chunks(waiting)
                    waiting, waiting_ids = [], 0
        if waiting:
            yield join_chunks(waiting)

    def _chunk(
        self, record: PassRecord, rank: int, step: int, period: MapPeriod, tracker: RequestTracker
    ) -> TokenChunk:
        request_T, phase_T = tracker.assign(record)
        ids_LTX = record.ids_LTX
        if ids_LTX is None:  # not in this mode; see read_rank_file
            ids_LTX = np.full((len(period.map_LP), 0, 1), -1, dtype=np.int32)
        topk_LTK = self._rows.place(compact_experts(ids_LTX, period, self._header.top_k or 1), fill=int(NO_EXPERT))
        routed_T = (topk_LTK != NO_EXPERT).any(axis=(0, 2))
        if not routed_T.all():
            topk_LTK = topk_LTK[:, routed_T]
        tokens = topk_LTK.shape[1]
        return TokenChunk(
            topk_LTK=topk_LTK,
            request_id_T=request_T[routed_T],
            position_T=record.position_T[routed_T],
            source_T=np.full(tokens, rank if self._has_sources else -1, dtype=np.int32),
            domain_T=np.full(tokens, -1, dtype=np.int32),
            phase_T=phase_T[routed_T],
            step_T=np.full(tokens, step, dtype=np.int64),
        )


def join_chunks(chunks: list[TokenChunk]) -> TokenChunk:
    """Put consecutive tokens of one window together."""
    if len(chunks) == 1:
        return chunks[0]
    return TokenChunk(
        topk_LTK=np.concatenate([chunk.topk_LTK for chunk in chunks], axis=1),
        request_id_T=np.concatenate([chunk.request_id_T for chunk in chunks]),
        position_T=np.concatenate([chunk.position_T for chunk in chunks]),
        source_T=np.concatenate([chunk.source_T for chunk in chunks]),
        domain_T=np.concatenate([chunk.domain_T for chunk in chunks]),
        phase_T=np.concatenate([chunk.phase_T for chunk in chunks]),
        step_T=np.concatenate([chunk.step_T for chunk in chunks]),
        window=chunks[0].window,
    )
