"""Small recordings for tests, written in the formats that readers take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.trace import CountChunk, TokenChunk, TraceHeader, TraceReader

DATA = Path(__file__).parents[1] / "data"


def write_json(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def write_token_npz(path: Path, topk_LTK: npt.NDArray[Any], **arrays: Any) -> Path:
    """Write a token trace; requests of three tokens each unless ``request_id`` says otherwise."""
    arrays.setdefault("request_id", np.arange(topk_LTK.shape[1]) // 3)
    arrays.setdefault("num_experts", np.int32(8))
    np.savez_compressed(path, topk=topk_LTK, **{name: value for name, value in arrays.items() if value is not None})
    return path


def shape(layers: int, experts: int, *, dense: int = 0, top_k: int = 2, draft: int = 0) -> ModelShape:
    """Return a model whose first ``dense`` layers have no experts."""
    return ModelShape(
        layers=layers, experts=experts, top_k=top_k, moe_layers=tuple(range(dense, layers)), draft_layers=draft
    )


def counts_by_window(reader: TraceReader) -> dict[str, npt.NDArray[np.int64]]:
    """Return the counts [L, S, E] of a reader of counts, added up by window."""
    windows: dict[str, npt.NDArray[np.int64]] = {}
    for chunk in reader.chunks():
        assert isinstance(chunk, CountChunk)
        windows[chunk.window] = windows.get(chunk.window, 0) + chunk.tokens_LSE
    return windows


def total_LE(reader: TraceReader) -> npt.NDArray[np.int64]:
    """Return the counts [L, E] of a reader of counts, all windows and sources added up."""
    total: npt.NDArray[np.int64] = np.sum(list(counts_by_window(reader).values()), axis=(0, 2))
    return total


def tokens_of(reader: TraceReader) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a token trace, all chunks joined."""
    chunks = [chunk for chunk in reader.chunks() if isinstance(chunk, TokenChunk)]
    names = ("request_id_T", "position_T", "source_T", "domain_T", "phase_T", "step_T")
    columns = {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in names}
    return {**columns, "topk_LTK": np.concatenate([chunk.topk_LTK for chunk in chunks], axis=1)}


def codes(notices: Iterable[Notice]) -> list[str]:
    return [notice.code for notice in notices]


class ListedReader:
    """A reader over chunks that a test lists."""

    def __init__(
        self, header: TraceHeader, chunks: Sequence[CountChunk | TokenChunk], name: str = "listed", notices: Any = ()
    ) -> None:
        self.header = header
        self.name = name
        self.notices: tuple[Notice, ...] = tuple(notices)
        self.content_hash = "0" * 64
        self._chunks = chunks

    def facts(self) -> dict[str, object]:
        return {}

    def require_complete(self) -> None:
        return None

    def chunks(self) -> Iterable[CountChunk | TokenChunk]:
        yield from self._chunks


def count_chunk(tokens_LSE: Any, window: str = "", **fields: Any) -> CountChunk:
    return CountChunk(window=window, tokens_LSE=np.asarray(tokens_LSE, dtype=np.int64), **fields)


def token_chunk(topk_LTK: Any, **columns: Any) -> TokenChunk:
    """Return a chunk of tokens; columns that are not given hold what stands for unknown."""
    topk = np.asarray(topk_LTK).astype(np.uint16)
    tokens = topk.shape[1]
    defaults = {
        "request_id_T": np.arange(tokens),
        "position_T": np.full(tokens, -1),
        "source_T": np.full(tokens, -1),
        "domain_T": np.full(tokens, -1),
        "phase_T": np.zeros(tokens),
        "step_T": np.full(tokens, -1),
    }
    types = {"request_id_T": np.int64, "phase_T": np.uint8, "step_T": np.int64}
    window = columns.pop("window", "")
    values = {
        name: np.asarray(columns.get(name, default)).astype(types.get(name, np.int32))
        for name, default in defaults.items()
    }
    return TokenChunk(topk_LTK=topk, window=window, **values)
