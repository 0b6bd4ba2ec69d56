"""Demand of the recorded models in ``../shared/data``; other people's recordings, read in place and never committed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from placement.demand import Demand
from placement.token_sample import joined_tokens
from placement.tokens import Tokens
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.trace import NO_EXPERT, TokenChunk
from profiler.windows import WindowBy, build_demand

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data"

DEEPSEEK_V2_LITE = ("deepseek-v2-lite.npz",)
DEEPSEEK_V3 = (
    "deepseek-v3-prefill_in1024.json",
    "deepseek-v3-prefill_in4096.json",
    "deepseek-v3-decode_in1000out1000.json",
)
QWEN3_30B = ("qwen3-30b-a3b.npz",)
MIXTRAL = ("mixtral-8x7b.npz",)


def require_recordings() -> None:
    """End the benchmark with one line where the recordings are absent."""
    if not FOLDER.is_dir():
        raise SystemExit("Skipped: the recorded routing of real models (../shared/data) is not here.")


def recorded_demand(names: tuple[str, ...], *, gpus: int, window_by: str = "file") -> Demand:
    """Read recordings as windows with uniform sources."""
    readers = open_inputs([FOLDER / name for name in names], ReadOptions())
    return build_demand(readers, window_by=WindowBy.parse(window_by), gpus=gpus).demand


def requests_apart(names: tuple[str, ...], *, held_out: float) -> tuple[Demand, Demand]:
    """Split a token trace by requests, a window per task: demand to plan from, and to judge on.

    Of every task the last ``held_out`` of its requests are kept apart.
    """
    chunks = _token_chunks(names)
    domain_of = {}
    for chunk in chunks:
        domain_of.update(zip(chunk.request_id_T.tolist(), chunk.domain_T.tolist(), strict=True))
    kept_apart = set()
    for domain in set(domain_of.values()):
        requests = [request for request, of in domain_of.items() if of == domain]
        kept_apart.update(requests[round(len(requests) * (1 - held_out)) :])
    header = open_inputs([FOLDER / names[0]], ReadOptions())[0].header
    shape = (2, len(header.domain_names), header.layers, 1, header.experts)
    tokens_HWLSE = np.zeros(shape, dtype=np.int64)
    for chunk in chunks:
        half_T = np.isin(chunk.request_id_T, list(kept_apart)).astype(int)
        for layer in range(header.layers):
            token_X, experts_X = _routed(chunk, layer)
            np.add.at(tokens_HWLSE, (half_T[token_X], chunk.domain_T[token_X], layer, 0, experts_X), 1)
    planned, judged = (Demand(tokens_WLSE, "uniform", header.domain_names) for tokens_WLSE in tokens_HWLSE)
    return planned, judged


def demand_at_home(names: tuple[str, ...], *, gpus: int) -> Demand:
    """Give every task of a token trace its own GPUs, requests in turn over them: demand with measured sources.

    It stands for a router that sends requests of one kind to the same replicas of the engine.
    """
    chunks = _token_chunks(names)
    header = open_inputs([FOLDER / names[0]], ReadOptions())[0].header
    per_domain = max(1, gpus // len(header.domain_names))
    tokens_LSE = np.zeros((header.layers, gpus, header.experts), dtype=np.int64)
    for chunk in chunks:
        home_T = (chunk.domain_T * per_domain + chunk.request_id_T % per_domain) % gpus
        for layer in range(header.layers):
            token_X, experts_X = _routed(chunk, layer)
            np.add.at(tokens_LSE[layer], (home_T[token_X], experts_X), 1)
    return Demand(tokens_LSE[None], "measured", ("all",))


def _token_chunks(names: tuple[str, ...]) -> list[TokenChunk]:
    (reader,) = open_inputs([FOLDER / name for name in names], ReadOptions())
    chunks = [chunk for chunk in reader.chunks() if isinstance(chunk, TokenChunk)]
    if not chunks:
        raise SystemExit(f"{names[0]} is not a token trace.")
    return chunks


def _routed(chunk: TokenChunk, layer: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint16]]:
    """Return token index and expert of every routed id of a layer."""
    ids_TK = chunk.topk_LTK[layer]
    routed_TK = ids_TK != NO_EXPERT
    return np.nonzero(routed_TK)[0], ids_TK[routed_TK]


def tokens_apart(names: tuple[str, ...], *, held_out: float) -> tuple[Tokens, Tokens]:
    """Split a token trace as :func:`requests_apart` does; tokens one by one, a window per task."""
    readers = open_inputs([FOLDER / name for name in names], ReadOptions())
    result = build_demand(readers, window_by=WindowBy.parse("domain"), gpus=1)
    if result.tokens is None:
        raise SystemExit(f"{', '.join(names)} hold counts, not tokens.")
    tokens = joined_tokens(list(result.tokens))
    kept_apart: list[int] = []
    for window in range(result.demand.windows):
        requests = list(dict.fromkeys(tokens.request_T[tokens.window_T == window].tolist()))
        kept_apart.extend(requests[round(len(requests) * (1 - held_out)) :])
    is_late_T = np.isin(tokens.request_T, kept_apart)
    return tokens.pick(~is_late_T), tokens.pick(is_late_T)


def demand_of_tokens(tokens: Tokens) -> Demand:
    """Add tokens up as one window with uniform sources."""
    counts_LE = [
        np.bincount(ids_TK[ids_TK < tokens.experts], minlength=tokens.experts) for ids_TK in tokens.experts_LTK
    ]
    return Demand.uniform(np.array(counts_LE), ("all",))


def shuffled(tokens: Tokens, *, seed: int) -> Tokens:
    """Deal every layer's choices out to tokens anew: demand stays, what is chosen together becomes chance.

    No token gets an expert twice: such choices are exchanged with those of tokens drawn at random.
    """
    generator = np.random.default_rng(seed)
    layers = []
    for ids_TK in tokens.experts_LTK:
        dealt_TK = generator.permuted(ids_TK, axis=0)
        while (twice := _chosen_twice(dealt_TK)).size:
            for token, column in twice.tolist():
                other = int(generator.integers(len(dealt_TK)))
                given, taken = dealt_TK[token, column], dealt_TK[other, column]
                if taken not in dealt_TK[token] and given not in dealt_TK[other]:
                    dealt_TK[token, column], dealt_TK[other, column] = taken, given
        layers.append(dealt_TK)
    return replace(tokens, experts_LTK=np.stack(layers))


def _chosen_twice(ids_TK: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
    """Return token and column of every choice that the token has in an earlier column too; [X, 2]."""
    same_TKK = ids_TK[:, :, None] == ids_TK[:, None, :]
    earlier_KK = np.tri(ids_TK.shape[1], k=-1, dtype=bool)
    return np.argwhere((same_TKK & earlier_KK).any(axis=2) & (ids_TK != NO_EXPERT))
