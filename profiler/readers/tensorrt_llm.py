"""The statistics folder of TensorRT-LLM: ``meta_info.json`` and ``rank<r>.safetensors``.

Every rank file holds one tensor [experts] per ``<iteration>_<layer>``, layers being decoder layers. A rank counts the
tokens it routes itself before they are sent anywhere: with attention data parallelism those that live on it, without
it all of them (tensorrt_llm/_torch/expert_statistic.py, and its readers in examples/wide_ep/ep_load_balancer). With
a load balancer on, it counts slots instead of experts, which cannot be turned back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from placement.errors import CountOutOfRange
from placement.notice import Notice
from profiler.errors import BadCountShape, BadCountType, MissingRanks, UnreadableDump
from profiler.files import content_hash
from profiler.json_file import read_json
from profiler.readers.counts import (
    MAX_EXPERTS,
    MAX_TOTAL,
    missing_ranks_notice,
    require_sane_size,
    whole_counts,
)
from profiler.readers.layer_rows import decoder_layer_rows
from profiler.readers.options import ReadOptions
from profiler.readers.rank_files import missing_ranks, sources_repeated_notice
from profiler.trace import CountChunk, TraceHeader

META_NAME = "meta_info.json"
_RANK_FILE = re.compile(r"rank(\d{1,6})\.safetensors", re.ASCII)
_KEY = re.compile(r"(0|[1-9]\d{0,17})_(0|[1-9]\d{0,8})", re.ASCII)


def is_statistics_folder(folder: Path) -> bool:
    """Tell whether a folder holds TensorRT-LLM statistics."""
    return (folder / META_NAME).is_file() and any(_RANK_FILE.fullmatch(path.name) for path in folder.iterdir())


def open_tensorrt_llm(folder: Path, options: ReadOptions) -> TensorRtLlmReader:
    """Open a statistics folder; iterations are the steps of one window.

    Raises
    ------
    UnreadableDump, BadJson
        A file that is damaged or lacks what TensorRT-LLM writes.
    BadCountShape, BadCountType
        Counts of another shape than ``meta_info.json`` says, iterations without some layer, or slot counts.
    """
    return TensorRtLlmReader(folder, options)


class TensorRtLlmReader:
    """Streams the folder iteration by iteration; see :func:`open_tensorrt_llm`."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self._folder = folder
        self._options = options
        ranks = {int(match[1]): path for path in folder.iterdir() if (match := _RANK_FILE.fullmatch(path.name))}
        self._path_of_rank = dict(sorted(ranks.items()))
        meta = _read_meta(folder / META_NAME)
        self._experts, top_k = _dimensions(meta, options, name=folder.name)
        ep_size = meta.get("ep_size")
        expected = options.expected_ranks or (ep_size if isinstance(ep_size, int) else None)
        self._missing = missing_ranks(list(ranks), expected=expected)
        self._iterations, self._layers = self._places()
        self._rows = decoder_layer_rows(
            name=folder.name, row_count=len(self._layers), labels=self._layers, model=options.model
        )
        require_sane_size(self._rows.layers, self._experts, name=folder.name)
        self._identical = len(ranks) > 1 and self._ranks_are_identical()
        measured = len(ranks) > 1 and not self._identical and not self._missing
        self._header = TraceHeader(
            kind="counts",
            layers=self._rows.layers,
            experts=self._experts,
            top_k=top_k,
            source_ranks=len(ranks) if measured else None,
            engine="tensorrt-llm",
            model=options.model.name if options.model else "",
        )

    @property
    def header(self) -> TraceHeader:
        return self._header

    @property
    def name(self) -> str:
        return self._folder.name

    @cached_property
    def content_hash(self) -> str:
        return content_hash([self._folder / META_NAME, *self._path_of_rank.values()])

    @property
    def notices(self) -> tuple[Notice, ...]:
        notices = self._rows.notices
        if self._identical:
            notices += (sources_repeated_notice(self.name, len(self._path_of_rank)),)
        if self._missing:
            notices += (missing_ranks_notice(self.name, self._missing),)
        return notices

    def facts(self) -> dict[str, object]:
        """Return the ranks that were merged and the iterations that were recorded."""
        return {"ranks_merged": list(self._path_of_rank), "iterations": [self._iterations[0], self._iterations[-1]]}

    def require_complete(self) -> None:
        """Raise :class:`MissingRanks` where files of some ranks are missing and the caller did not allow it."""
        if self._missing and not self._options.allow_partial:
            raise MissingRanks(missing_ranks_notice(self.name, self._missing).detail)

    def chunks(self) -> Iterator[CountChunk]:
        """Yield one chunk per iteration, all in one window."""
        total = 0.0
        with ExitStack() as stack:
            files = [stack.enter_context(_opened(path)) for path in self._path_of_rank.values()]
            for iteration in self._iterations:
                counts_RSX = np.stack([self._counts(file, iteration) for file in files], axis=1)
                total += float(counts_RSX.sum(dtype=np.float64))
                if total >= MAX_TOTAL:
                    raise CountOutOfRange(f"the counts of {self.name} add up to {total:.3g}, more than 2^62.")
                if self._header.source_ranks is None:
                    counts_RSX = counts_RSX.sum(axis=1, keepdims=True)
                yield CountChunk(window=self.name, tokens_LSE=self._rows.place(counts_RSX), steps=1)

    def _places(self) -> tuple[list[int], list[int]]:
        """Return iterations and layers; every iteration must have every layer on some rank."""
        places: set[tuple[int, int]] = set()
        for path in self._path_of_rank.values():
            with _opened(path) as file:
                for key in file.keys:
                    match = _KEY.fullmatch(key)
                    if match is None:
                        raise UnreadableDump(f"{path.name} holds {key[:40]!r}; keys are <iteration>_<layer>.")
                    places.add((int(match[1]), int(match[2])))
        iterations, layers = sorted({place[0] for place in places}), sorted({place[1] for place in places})
        if not places:
            raise BadCountShape(f"{self.name} holds no counts.")
        if len(places) != len(iterations) * len(layers):
            lacking = next(
                (iteration, layer) for iteration in iterations for layer in layers if (iteration, layer) not in places
            )
            raise BadCountShape(
                f"{self.name} has no counts of layer {lacking[1]} in iteration {lacking[0]}: was the recording cut off?"
            )
        return iterations, layers

    def _ranks_are_identical(self) -> bool:
        """Compare the first iteration: ranks that counted every token agree in all of it."""
        with ExitStack() as stack:
            files = [stack.enter_context(_opened(path)) for path in self._path_of_rank.values()]
            first = self._counts(files[0], self._iterations[0])
            return all(np.array_equal(first, self._counts(file, self._iterations[0])) for file in files[1:])

    def _counts(self, file: _RankFile, iteration: int) -> npt.NDArray[np.int64]:
        """Return one rank's counts of one iteration, int64 [R, X]; a layer the rank does not have is zero."""
        counts_RX = np.zeros((len(self._layers), self._experts), dtype=np.int64)
        for row, layer in enumerate(self._layers):
            key = f"{iteration}_{layer}"
            if key not in file.keys:
                continue
            stored = file.tensors.get_slice(key)
            if list(stored.get_shape()) != [self._experts]:
                raise BadCountShape(
                    f"{key} of {self.name} has shape {stored.get_shape()}; [{self._experts}] is needed."
                )
            if stored.get_dtype()[0] not in "IUF" or stored.get_dtype().startswith("F8"):
                raise BadCountType(f"{key} of {self.name} holds {stored.get_dtype()} values; counts are whole numbers.")
            counts_RX[row] = whole_counts(file.tensors.get_tensor(key), where=f"{key} of {self.name}")
        return counts_RX


@dataclass(frozen=True)
class _RankFile:
    """One rank's file, opened, and the keys in it."""

    tensors: Any
    keys: frozenset[str]


@contextmanager
def _opened(path: Path) -> Iterator[_RankFile]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield _RankFile(file, frozenset(file.keys()))
    except (SafetensorError, OSError) as error:
        raise UnreadableDump(f"{path.name} is truncated or damaged: {error}.") from error


def _read_meta(path: Path) -> Mapping[str, object]:
    meta = read_json(path)
    if not isinstance(meta, dict):
        raise UnreadableDump(f"{path.name} holds no JSON object.")
    return meta


def _dimensions(meta: Mapping[str, object], options: ReadOptions, *, name: str) -> tuple[int, int]:
    """Return experts and top-k from ``meta_info.json``."""
    values = []
    for key in ("num_experts", "num_experts_per_token"):
        value = meta.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_EXPERTS:
            raise UnreadableDump(
                f"{META_NAME} of {name} has {key} {value!r}; a number from 1 to {MAX_EXPERTS} is needed."
            )
        values.append(value)
    experts, top_k = values
    if options.known_experts is not None and experts != options.known_experts:
        raise BadCountShape(
            f"{name} counts {experts} slots, the model has {options.known_experts} experts: it was recorded with a "
            "load balancer on. Record again without one."
        )
    return experts, top_k
