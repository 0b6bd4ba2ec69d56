"""Routing made up for tests, and the dumps that SGLang's recorder would have written of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.readers.options import ReadOptions
from profiler.readers.sglang_pt import SglangReader, open_sglang_pt
from profiler.writers.sglang_dump import RecordedTokens, rank_file_name, write_per_pass, write_per_token

Ints = npt.NDArray[np.int64]
PREFILL, DECODE, MIXED, IDLE = 1, 2, 3, 4
TIME_S = 10.0


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_layout(generator: np.random.Generator, *, layers: int, experts: int, redundant: int = 0) -> Ints:
    """Return a layout [L, P] of all experts and some of them twice, shuffled."""
    rows = []
    for _ in range(layers):
        twice = generator.choice(experts, size=redundant, replace=redundant > experts)
        rows.append(generator.permutation(np.concatenate([np.arange(experts), twice])))
    return np.stack(rows)


def trivial_layout(*, layers: int, experts: int, redundant: int = 0) -> Ints:
    return np.tile(np.arange(experts + redundant) % experts, (layers, 1))


def popularity(generator: np.random.Generator, *, layers: int, experts: int) -> npt.NDArray[np.float64]:
    """Return how likely each expert is, [L, E], as uneven as in a real model."""
    shares_LE = generator.gamma(2.0, size=(layers, experts))
    return shares_LE / shares_LE.sum(axis=1, keepdims=True)


def route(generator: np.random.Generator, popularity_LE: npt.NDArray[np.float64], *, tokens: int, top_k: int) -> Ints:
    """Return distinct experts [L, T, K] of every token."""
    noise = generator.gumbel(size=(len(popularity_LE), tokens, popularity_LE.shape[1]))
    return np.argsort(-(np.log(popularity_LE)[:, None, :] + noise), axis=-1)[:, :, :top_k]


def to_slots(generator: np.random.Generator, experts_LTK: Ints, layout_LP: Ints) -> Ints:
    """Return a slot of every expert, its replicas at random."""
    slots = np.empty_like(experts_LTK)
    for layer, row_P in enumerate(layout_LP):
        for expert in np.unique(experts_LTK[layer]):
            chosen = experts_LTK[layer] == expert
            slots[layer][chosen] = generator.choice(np.flatnonzero(row_P == expert), size=int(chosen.sum()))
    return slots


def count(ids_LTK: Ints, width: int) -> Ints:
    """Return how often each id occurs, [L, width]."""
    return np.stack([np.bincount(ids_TK[ids_TK >= 0], minlength=width) for ids_TK in ids_LTK])


def prefill(pass_id: int, ids_LTK: Ints, *, lengths: Sequence[int] | None = None, **fields: Any) -> RecordedTokens:
    """Return a prefill pass of new sequences, one unless their lengths say otherwise."""
    lengths = lengths or [ids_LTK.shape[1]]
    positions = np.concatenate([np.arange(length) for length in lengths]).tolist()
    input_ids = fields.pop("input_ids", list(range(1000, 1000 + ids_LTK.shape[1])))
    return RecordedTokens(pass_id, ids_LTK, input_ids, fields.pop("positions", positions), lengths, PREFILL)


def decode(pass_id: int, ids_LTK: Ints, positions: Sequence[int]) -> RecordedTokens:
    return RecordedTokens(pass_id, ids_LTK, [5] * len(positions), list(positions), None, DECODE)


def idle(pass_id: int, layers: int) -> RecordedTokens:
    return RecordedTokens(pass_id, np.zeros((layers, 0, 1), dtype=np.int64), [], [], None, IDLE)


def write_tokens(folder: Path, rank: int, passes: Sequence[RecordedTokens], layout_LP: Ints) -> Path:
    path = folder / rank_file_name(TIME_S + rank / 1000, rank)
    write_per_token(path, passes, layout_LP, rank=rank)
    return path


def write_counts(folder: Path, rank: int, counts: Sequence[Ints], layout_LP: Ints, *, first_pass: int = 1) -> Path:
    path = folder / rank_file_name(TIME_S + rank / 1000, rank)
    write_per_pass(path, list(enumerate(counts, start=first_pass)), layout_LP, rank=rank)
    return path


def opened(path: Path, **options: Any) -> SglangReader:
    return open_sglang_pt(path, ReadOptions(**options))
