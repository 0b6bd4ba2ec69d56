"""moeplan's own trace files; the format is in :mod:`profiler.trace_file`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from placement.notice import Notice
from profiler.errors import ArchiveInflates, InputsDisagree, UnreadableDump
from profiler.files import content_hash
from profiler.readers.counts import require_bounded_total, whole_counts
from profiler.readers.options import ReadOptions
from profiler.trace import NO_EXPERT, CountChunk, TokenChunk, TraceHeader
from profiler.trace_file import PHASES, TOKEN_COLUMNS, TraceFileHeader, count_schema, token_schema

MAX_ROW_GROUP_BYTES = 2**30
"""Row groups are written at a few MB; one that claims more than this is no trace of ours."""


def open_parquet(path: Path, options: ReadOptions) -> ParquetReader:
    """Open a moeplan trace.

    Raises
    ------
    UnknownFormat, TraceVersionUnknown, UnreadableDump, ArchiveInflates
    InputsDisagree
        The model the caller gave is another one.
    """
    return ParquetReader(path, options)


class ParquetReader:
    """Streams a moeplan trace by row group; see :func:`open_parquet`."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self._path = path
        with self._opened() as file:
            self._file_header = TraceFileHeader.from_metadata(file.metadata.metadata, name=path.name)
            self._check_schema(file.schema_arrow)
            self._rows = file.metadata.num_rows
            for group in range(file.metadata.num_row_groups):
                self._check_row_group(file.metadata.row_group(group).num_rows)
        self._check_model(options)

    @property
    def header(self) -> TraceHeader:
        return self._file_header.trace

    @property
    def name(self) -> str:
        return self._path.name

    @cached_property
    def content_hash(self) -> str:
        return content_hash([self._path])

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._file_header.notices

    def facts(self) -> dict[str, object]:
        """Return who wrote the trace, and from what."""
        header = self._file_header
        facts: dict[str, object] = {"moeplan_version": header.moeplan_version, "inputs": list(header.inputs)}
        return {**facts, "tokens": self._rows} if header.trace.kind == "tokens" else facts

    def require_complete(self) -> None:
        """Do nothing: what was missing was decided on at import, and its notice goes with the trace."""

    def chunks(self) -> Iterator[CountChunk | TokenChunk]:
        """Yield row group by row group."""
        read = self._token_chunks if self.header.kind == "tokens" else self._count_chunks
        with self._opened() as file:
            for group in range(file.metadata.num_row_groups):
                yield from read(file.read_row_group(group, use_threads=False))

    def _token_chunks(self, table: pa.Table) -> Iterator[TokenChunk]:
        header = self._file_header
        shape = header.trace.layers, table.num_rows, header.columns_per_token
        topk_LTK = np.full(shape, NO_EXPERT, dtype=np.uint16)
        for layer in header.moe_layers:
            topk_LTK[layer] = _lists(table, f"layer_{layer}").reshape(shape[1:])
        beyond = (topk_LTK >= header.trace.experts) & (topk_LTK != NO_EXPERT)
        if beyond.any():
            raise UnreadableDump(f"{self.name} holds the id {topk_LTK[beyond][0]} of {header.trace.experts} experts.")
        columns = {name: _column(table, name) for name in TOKEN_COLUMNS}
        self._check_range(columns["domain"], -1, len(header.trace.domain_names), "domain")
        self._check_range(columns["source"], -1, header.trace.source_ranks or 2**31, "source")
        window_T = self._windows(columns.pop("window"))
        for start, stop in _runs(window_T):
            span = slice(start, stop)
            yield TokenChunk(
                topk_LTK=topk_LTK[:, span],
                window=header.window_names[int(window_T[start])],
                **{f"{name}_T": values[span] for name, values in columns.items()},
            )

    def _count_chunks(self, table: pa.Table) -> Iterator[CountChunk]:
        header = self._file_header
        experts, layers, ranks = header.trace.experts, header.trace.layers, header.trace.source_ranks or 1
        tokens_RE = whole_counts(_lists(table, "tokens").reshape(-1, experts), where=f"tokens of {self.name}")
        require_bounded_total(tokens_RE, where=self.name)
        chunk_R, layer_R, source_R = (_column(table, name) for name in ("chunk", "layer", "source"))
        self._check_range(layer_R, 0, layers, "layer")
        self._check_range(source_R, 0, ranks, "source")
        phase_R = _column(table, "phase")
        self._check_range(phase_R, 0, len(PHASES), "phase")
        window_R = self._windows(_column(table, "window"))
        steps_R, seconds_R = _column(table, "steps"), _column(table, "seconds")
        for start, stop in _runs(chunk_R):
            tokens_LSE = np.zeros((layers, ranks, experts), dtype=np.int64)
            tokens_LSE[layer_R[start:stop], source_R[start:stop]] = tokens_RE[start:stop]
            yield CountChunk(
                window=header.window_names[int(window_R[start])],
                tokens_LSE=tokens_LSE,
                steps=int(steps_R[start]),
                phase=PHASES[int(phase_R[start])],
                seconds=float(seconds_R[start]),
            )

    def _windows(self, window_R: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self._check_range(window_R, 0, len(self._file_header.window_names), "window")
        return window_R

    def _check_range(self, values: npt.NDArray[Any], low: int, high: int, what: str) -> None:
        if values.size and not low <= int(values.min()) <= int(values.max()) < high:
            raise UnreadableDump(f"{self.name} has a {what} outside {low} to {high - 1}.")

    def _check_schema(self, schema: pa.Schema) -> None:
        header = self._file_header
        if header.trace.kind == "tokens":
            expected = token_schema(header.moe_layers, header.columns_per_token)
        else:
            expected = count_schema(header.trace.experts)
        if not schema.remove_metadata().equals(expected):
            raise UnreadableDump(f"{self.name} has other columns than its header states.")

    def _check_row_group(self, rows: int) -> None:
        header = self._file_header
        tokens = header.trace.kind == "tokens"
        per_row = 2 * header.trace.layers * header.columns_per_token if tokens else 8 * header.trace.experts
        if rows * per_row > MAX_ROW_GROUP_BYTES:
            raise ArchiveInflates(f"{self.name} has a row group of {rows} rows that unpacks to {rows * per_row} bytes.")

    def _check_model(self, options: ReadOptions) -> None:
        header, model = self.header, options.model
        if options.known_experts not in (None, header.experts):
            raise InputsDisagree(f"{self.name} has {header.experts} experts, the model {options.known_experts}.")
        if model is not None and model.layers != header.layers:
            raise InputsDisagree(
                f"{self.name} has {header.layers} decoder layers, the model {model.layers}: import it again with "
                "--model."
            )

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Open the file; whatever Arrow finds wrong with it is one error to the caller."""
        try:
            with pq.ParquetFile(self._path, page_checksum_verification=True) as file:
                yield file
        except (pa.ArrowException, OSError, ValueError) as error:
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnreadableDump(f"{self._path.name} is truncated or damaged: {first_line}.") from error


def _column(table: pa.Table, name: str) -> npt.NDArray[Any]:
    return _joined(table.column(name).chunks, table.schema.field(name).type)


def _lists(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """Return the values of a column of lists, one after the other."""
    return _joined([chunk.flatten() for chunk in table.column(name).chunks], table.schema.field(name).type.value_type)


def _joined(chunks: list[pa.Array], kind: pa.DataType) -> npt.NDArray[Any]:
    # Through DLPack: Arrow's own to_numpy() imports pandas where that is installed, 46 MB for nothing.
    arrays = [np.from_dlpack(chunk) for chunk in chunks if len(chunk)]
    if not arrays:
        return np.zeros(0, dtype=str(kind).replace("double", "float64"))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _runs(values: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of every stretch of equal values."""
    edges = np.flatnonzero(np.diff(values)) + 1
    bounds = [0, *edges.tolist(), len(values)]
    yield from pairwise(bounds) if len(values) else ()
