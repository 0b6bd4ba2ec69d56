"""Several recordings of one model in a folder, read as one input with a window for each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from placement.notice import Notice
from profiler.errors import InputsDisagree
from profiler.readers.sglang_per_pass import SglangPerPassReader
from profiler.readers.sglang_per_token import SglangPerTokenReader
from profiler.readers.sglang_stat import SglangStatReader
from profiler.trace import NO_EXPERT, CountChunk, TokenChunk, TraceHeader

RecordingReader = SglangStatReader | SglangPerPassReader | SglangPerTokenReader


class SglangFolderReader:
    """A :class:`profiler.trace.TraceReader` over several recordings.

    Requests and steps are numbered on from recording to recording. Sources are known where every recording counts
    them by the same number of ranks.

    Parameters
    ----------
    name : str
        Name of the folder.
    readers : sequence of readers
        One per recording, at least one.

    Raises
    ------
    InputsDisagree
        The recordings have different layers or experts, or some hold counts and some tokens.
    """

    def __init__(self, name: str, readers: Sequence[RecordingReader]) -> None:
        self._name = name
        self._readers = tuple(readers)
        headers = [reader.header for reader in readers]
        for reader in readers:
            _require_same_model(readers[0], reader)
        top_ks = [header.top_k for header in headers if header.top_k is not None]
        ranks = {header.source_ranks for header in headers}
        self._header = replace(
            headers[0],
            top_k=max(top_ks, default=None),
            source_ranks=headers[0].source_ranks if len(ranks) == 1 else None,
        )

    @property
    def header(self) -> TraceHeader:
        return self._header

    @property
    def name(self) -> str:
        return self._name

    @cached_property
    def content_hash(self) -> str:
        hashes = sorted(f"{reader.name}\0{reader.content_hash}\n" for reader in self._readers)
        return hashlib.sha256("".join(hashes).encode()).hexdigest()

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(notice for reader in self._readers for notice in reader.notices)

    def facts(self) -> dict[str, object]:
        """Return what each recording says beyond the header, by its name."""
        return {"recordings": {reader.name: reader.facts() for reader in self._readers}}

    def require_complete(self) -> None:
        """Raise :class:`MissingRanks` where a recording lacks files and the caller did not allow it."""
        for reader in self._readers:
            reader.require_complete()

    def chunks(self) -> Iterator[CountChunk | TokenChunk]:
        """Yield the chunks of every recording, in a window named after it."""
        first_request = first_step = 0
        for reader in self._readers:
            next_request, next_step = first_request, first_step
            for chunk in reader.chunks():
                if isinstance(chunk, CountChunk):
                    yield self._counts(chunk, reader.name)
                    continue
                moved = self._tokens(chunk, reader.name, first_request=first_request, first_step=first_step)
                next_request = max(next_request, int(moved.request_id_T.max(initial=-1)) + 1)
                next_step = max(next_step, int(moved.step_T.max(initial=-1)) + 1)
                yield moved
            first_request, first_step = next_request, next_step

    def _counts(self, chunk: CountChunk, window: str) -> CountChunk:
        tokens_LSE = chunk.tokens_LSE
        if self._header.source_ranks is None and tokens_LSE.shape[1] > 1:
            tokens_LSE = tokens_LSE.sum(axis=1, keepdims=True)
        return replace(chunk, window=window, tokens_LSE=tokens_LSE)

    def _tokens(self, chunk: TokenChunk, window: str, *, first_request: int, first_step: int) -> TokenChunk:
        missing = (self._header.top_k or 1) - chunk.topk_LTK.shape[2]
        return replace(
            chunk,
            window=window,
            topk_LTK=np.pad(chunk.topk_LTK, ((0, 0), (0, 0), (0, missing)), constant_values=NO_EXPERT),
            request_id_T=chunk.request_id_T + first_request,
            step_T=chunk.step_T + first_step,
            source_T=chunk.source_T if self._header.source_ranks is not None else np.full_like(chunk.source_T, -1),
        )


def _require_same_model(one: RecordingReader, other: RecordingReader) -> None:
    for what in ("kind", "layers", "experts"):
        expected, found = getattr(one.header, what), getattr(other.header, what)
        if expected != found:
            raise InputsDisagree(
                f"{other.name} has {what} {found}, {one.name} has {expected}: they are not of one model."
            )
