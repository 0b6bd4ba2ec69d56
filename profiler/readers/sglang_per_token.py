"""SGLang's recorder in mode ``per_token``: slot ids of every token and layer, one file per rank."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from placement.notice import Notice
from profiler.errors import InputsDisagree
from profiler.readers.counts import shared_experts_notice
from profiler.readers.layer_rows import LayerRows, decoder_layer_rows
from profiler.readers.options import ReadOptions
from profiler.readers.sglang_ids import ids_are_experts, ids_are_experts_notice, map_changed
from profiler.readers.sglang_map import SlotMaps, identity_maps
from profiler.readers.sglang_rank_reader import RankFilesReader
from profiler.readers.sglang_ranks import RankFiles
from profiler.readers.sglang_repeats import repeats_rows, rows_repeated_notice
from profiler.readers.sglang_requests import RequestTracker
from profiler.readers.sglang_survey import TokenSurvey, compact_experts, id_slices, kept_records, survey_tokens
from profiler.trace import NO_EXPERT, TokenChunk, TraceHeader

IDS_PER_CHUNK = 2**20
"""Routed ids in one chunk: passes of a few tokens are joined, so that no cost per chunk matters."""


class SglangPerTokenReader(RankFilesReader):
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
        self._repeated = repeats_rows(ranks, maps)
        survey = survey_tokens(ranks, maps, repeated=self._repeated)
        notices = ranks.notices
        if ids_are_experts(survey.counts_LP, maps.last):
            notices += (ids_are_experts_notice(ranks.name, maps.last),)
            maps = identity_maps(maps)
            survey = survey_tokens(ranks, maps, repeated=self._repeated)
        if survey.change is not None:
            raise map_changed(ranks.name, survey.change)
        self._survey = survey
        self._rows: LayerRows = decoder_layer_rows(
            name=ranks.name,
            row_count=len(survey.busy_R),
            has_traffic=[bool(busy) for busy in survey.busy_R],
            model=options.model,
        )
        missing = () if self._repeated else ranks.missing
        self._has_sources = not self._repeated and len(ranks.files) > 1 and not missing
        model = options.model
        header = TraceHeader(
            kind="tokens",
            layers=self._rows.layers,
            experts=maps.experts,
            top_k=_top_k(ranks.name, survey, options),
            source_ranks=len(ranks.files) if self._has_sources else None,
            engine="sglang",
            model=model.name if model else "",
        )
        if self._repeated:
            notices += (rows_repeated_notice(ranks.name, survey.kept_rows, survey.all_rows),)
        super().__init__(
            ranks=ranks,
            maps=maps,
            options=options,
            header=header,
            missing=missing,
            notices=(*notices, *_survey_notices(ranks.name, survey, maps), *self._rows.notices),
        )

    def facts(self) -> dict[str, object]:
        """Return what this format says beyond the header."""
        return {
            "recorder_mode": "per_token",
            **super().facts(),
            "tokens": self._survey.kept_rows,
            "tokens_left_out": self._survey.all_rows - self._survey.kept_rows,
            "shared_expert_tokens": self._survey.shared_R.tolist(),
        }

    def chunks(self) -> Iterator[TokenChunk]:
        """Yield the tokens pass by pass, within a pass rank by rank; tokens without any routed expert are left out.

        Where no rank had a token, one chunk without tokens is yielded.
        """
        new_ids = itertools.count()
        trackers: defaultdict[int, RequestTracker] = defaultdict(lambda: RequestTracker(new_ids))
        waiting: list[TokenChunk] = [self._no_tokens()]
        waiting_ids = 0
        for group in self._ranks.groups:
            period = self._maps.at(group.pass_id)
            for rank, record in kept_records(group, repeated=self._repeated):
                request_T, phase_T = trackers[rank].assign(record)
                for rows, ids_LTX in id_slices(record):
                    waiting.append(
                        self._chunk(
                            compact_experts(ids_LTX, period, self._header.top_k or 1),
                            request_id_T=request_T[rows],
                            position_T=record.position_T[rows],
                            phase_T=phase_T[rows],
                            rank=rank,
                            step=group.step,
                        )
                    )
                    waiting_ids += waiting[-1].topk_LTK.size
                    if waiting_ids >= IDS_PER_CHUNK:
                        yield join_chunks(waiting)
                        waiting, waiting_ids = [], 0
        if waiting:
            yield join_chunks(waiting)

    def _no_tokens(self) -> TokenChunk:
        nothing = np.zeros(0, dtype=np.int64)
        return self._chunk(
            np.zeros((len(self._maps.last.map_LP), 0, self._header.top_k or 1), dtype=np.uint16),
            request_id_T=nothing,
            position_T=nothing.astype(np.int32),
            phase_T=nothing.astype(np.uint8),
            rank=0,
            step=0,
        )

    def _chunk(
        self,
        recorded_RTK: npt.NDArray[np.uint16],
        *,
        request_id_T: npt.NDArray[np.int64],
        position_T: npt.NDArray[np.int32],
        phase_T: npt.NDArray[np.uint8],
        rank: int,
        step: int,
    ) -> TokenChunk:
        topk_LTK = self._rows.place(recorded_RTK, fill=int(NO_EXPERT))
        routed_T = (topk_LTK != NO_EXPERT).any(axis=(0, 2))
        if not routed_T.all():
            topk_LTK = topk_LTK[:, routed_T]
        tokens = topk_LTK.shape[1]
        return TokenChunk(
            topk_LTK=topk_LTK,
            request_id_T=request_id_T[routed_T],
            position_T=position_T[routed_T],
            source_T=np.full(tokens, rank if self._has_sources else -1, dtype=np.int32),
            domain_T=np.full(tokens, -1, dtype=np.int32),
            phase_T=phase_T[routed_T],
            step_T=np.full(tokens, step, dtype=np.int64),
        )


def _top_k(name: str, survey: TokenSurvey, options: ReadOptions) -> int:
    model = options.model
    if model is None:
        return survey.top_k
    if survey.top_k > model.top_k:
        raise InputsDisagree(
            f"{name} has tokens with {survey.top_k} experts, the model has top-k {model.top_k}: is it the same model?"
        )
    return model.top_k


def _survey_notices(name: str, survey: TokenSurvey, maps: SlotMaps) -> Iterator[Notice]:
    if survey.shared_R.any():
        yield shared_experts_notice(name, maps.last.map_LP.shape[1], int(survey.shared_R.sum()))
    if survey.disagreeing_passes:
        yield Notice(
            "COUNTS_DISAGREE",
            f"{name}: in {survey.disagreeing_passes} passes global_physical_count is not what topk_ids_of_layer adds "
            "up to; the ids are used.",
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
