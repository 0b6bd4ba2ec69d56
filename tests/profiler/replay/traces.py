"""Token traces for tests: small ones made up, and the recordings that moeplan ships."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from placement.notice import Notice
from profiler.readers.npz import open_npz
from profiler.readers.options import ReadOptions
from profiler.recordings import recording_path
from profiler.trace import NO_EXPERT, CountChunk, TokenChunk, TraceHeader, TraceReader


def shipped(name: str) -> TraceReader:
    """Open a recording that moeplan ships."""
    return open_npz(recording_path(name), ReadOptions())


@dataclass(frozen=True, eq=False)
class MemoryTrace:
    """A trace whose chunks are at hand."""

    header: TraceHeader
    pieces: tuple[TokenChunk | CountChunk, ...]
    name: str = "made-up"
    content_hash: str = "0" * 64
    notices: tuple[Notice, ...] = ()

    def chunks(self) -> Iterator[TokenChunk | CountChunk]:
        return iter(self.pieces)


def made_up(
    lengths: Sequence[tuple[int, int]],
    *,
    layers: int = 4,
    experts: int = 8,
    top_k: int = 2,
    dense_layers: Sequence[int] = (),
    source_ranks: int | None = None,
    domains: Sequence[int] | None = None,
    seed: int = 0,
) -> MemoryTrace:
    """Make requests of ``(prompt, output)`` rows each, with experts at random, request by request.

    Sources, where recorded, go round-robin backwards, so that they differ from a router's own round-robin.
    """
    random = np.random.default_rng(seed)
    request_T = np.repeat(np.arange(len(lengths)), [prompt + output for prompt, output in lengths])
    position_T = np.concatenate([np.arange(prompt + output) for prompt, output in lengths])
    prompt_T = np.array([prompt for prompt, _ in lengths])[request_T]
    scores = random.random((layers, len(request_T), experts)) * np.linspace(1, 3, experts)
    topk_LTK = np.argsort(-scores, axis=2)[:, :, :top_k].astype(np.uint16)
    topk_LTK[list(dense_layers)] = NO_EXPERT
    source_T = np.full(len(request_T), -1) if source_ranks is None else -request_T % source_ranks
    chunk = TokenChunk(
        topk_LTK=topk_LTK,
        request_id_T=request_T.astype(np.int64) + 100,
        position_T=position_T.astype(np.int32),
        source_T=source_T.astype(np.int32),
        domain_T=(np.full(len(request_T), -1) if domains is None else np.array(domains)[request_T]).astype(np.int32),
        phase_T=np.where(position_T < prompt_T, 1, 2).astype(np.uint8),
        step_T=np.full(len(request_T), -1, dtype=np.int64),
    )
    return MemoryTrace(TraceHeader("tokens", layers, experts, top_k=top_k, source_ranks=source_ranks), (chunk,))


def counts_by_source(trace: TraceReader, home_of_request: dict[int, int], *, gpus: int) -> np.ndarray:
    """Count a trace's pairs by layer, home GPU and expert, int64 [L, S, E], one token after the other."""
    header = trace.header
    counts_LSE = np.zeros((header.layers, gpus, header.experts), dtype=np.int64)
    for chunk in trace.chunks():
        home_T = np.array([home_of_request[request] for request in chunk.request_id_T.tolist()])
        for layer in range(header.layers):
            for choice in range(chunk.topk_LTK.shape[2]):
                experts_T = chunk.topk_LTK[layer, :, choice].astype(np.int64)
                there = experts_T != NO_EXPERT
                np.add.at(counts_LSE[layer], (home_T[there], experts_T[there]), 1)
    return counts_LSE
