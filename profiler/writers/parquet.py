"""Writing moeplan traces; the format is in :mod:`profiler.trace_file`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from profiler.agreement import agreed_header, unique_window_names
from profiler.errors import BadCountShape, InputsDisagree
from profiler.files import atomic_output
from profiler.trace import NO_EXPERT, CountChunk, TokenChunk, TraceHeader, TraceReader
from profiler.trace_file import MAX_WINDOWS, METADATA_KEY, PHASES, TraceFileHeader, count_schema, token_schema

VALUES_PER_ROW_GROUP = 2**20
"""Routed ids or counts in a row group: few enough to stream, many enough to compress and to cost little each."""

# LZ4 over dictionary-encoded ids: within 5 % of Zstandard's size at several times its speed (tests/bench).
COMPRESSION = "lz4"


def import_trace(
    readers: Sequence[TraceReader], out_path: Path, progress: Callable[[float], None] | None = None
) -> dict[str, object]:
    """Write one or several inputs of the same kind as one moeplan trace.

    Windows, domains and requests of different inputs stay apart. The file appears whole or not at all.

    Parameters
    ----------
    readers : sequence of TraceReader
        At least one; all of counts or all of tokens.
    out_path : Path
    progress : callable, optional
        Called with the share done, 0 to 1.

    Returns
    -------
    dict
        What was written, for people and JSON; ``warnings`` holds the notices as mappings.

    Raises
    ------
    InputsDisagree, BadCountShape, OutputNotWritable
        And whatever the readers raise.
    """
    header = agreed_header(readers)
    if any(reader.header.kind != header.kind for reader in readers):
        kinds = ", ".join(f"{reader.name} holds {reader.header.kind}" for reader in readers)
        raise InputsDisagree(f"{kinds}: one trace holds either; import them into two.")
    windows = _Windows(readers)
    with atomic_output(out_path) as temporary:
        if header.kind == "tokens":
            moe_layers, columns, rows = _write_tokens(temporary, readers, header, windows, progress)
        else:
            moe_layers, columns, rows = _write_counts(temporary, readers, header, windows, progress)
        size_bytes = temporary.stat().st_size
    notices = list(dict.fromkeys(notice for reader in readers for notice in reader.notices))
    facts: dict[str, object] = {
        "kind": header.kind,
        "layers": header.layers,
        "moe_layers": list(moe_layers),
        "experts": header.experts,
        "top_k": header.top_k or columns or None,
        "windows": list(windows.names),
        "inputs": [reader.name for reader in readers],
        "size_bytes": size_bytes,
        "warnings": [notice.to_dict() for notice in notices],
    }
    return {**facts, "tokens": rows} if header.kind == "tokens" else facts


class _Windows:
    """Numbers the windows of all inputs in order of appearance."""

    def __init__(self, readers: Sequence[TraceReader]) -> None:
        self._readers = readers
        self._number: dict[tuple[int, str], int] = {}

    def number(self, reader: int, window: str) -> int:
        number = self._number.setdefault((reader, window or self._readers[reader].name), len(self._number))
        if number >= MAX_WINDOWS:
            raise BadCountShape(
                f"{self._readers[reader].name} brings the trace above {MAX_WINDOWS} windows, the most it can hold; "
                "import into several traces."
            )
        return number

    @property
    def names(self) -> tuple[str, ...]:
        return unique_window_names([(self._readers[reader].name, window) for reader, window in self._number])


class _NeedsColumns(Exception):
    """A chunk has ids in layers, or more ids per token, than the file being written has columns for."""


def _write_tokens(
    path: Path,
    readers: Sequence[TraceReader],
    header: TraceHeader,
    windows: _Windows,
    progress: Callable[[float], None] | None,
) -> tuple[tuple[int, ...], int, int]:
    """Write tokens; the first chunk says which layers have experts. Where a later one says more, start over."""
    moe_layers: set[int] = set()
    columns = 1
    while True:
        try:
            with ExitStack() as stack:
                writer: _TokenWriter | None = None
                for index, chunk in _all_chunks(readers, progress):
                    if not isinstance(chunk, TokenChunk) or len(chunk.request_id_T) == 0:
                        continue
                    moe_layers |= _layers_with_ids(chunk, set(range(header.layers)) - moe_layers)
                    columns = max(columns, chunk.topk_LTK.shape[2])
                    if writer is None:
                        writer = _TokenWriter(path, header, tuple(sorted(moe_layers)), columns)
                        stack.enter_context(writer.file)
                    if len(moe_layers) > len(writer.moe_layers) or columns > writer.columns:
                        raise _NeedsColumns
                    writer.add(chunk, readers[index], index, windows)
                if writer is None:
                    writer = _TokenWriter(path, header, (), columns)
                    stack.enter_context(writer.file)
                writer.flush()
                writer.finish(_file_header(readers, header, writer.moe_layers, columns, windows))
                return writer.moe_layers, columns, writer.rows
        except _NeedsColumns:
            continue


def _layers_with_ids(chunk: TokenChunk, layers: set[int]) -> set[int]:
    return {layer for layer in layers if int(chunk.topk_LTK[layer].min()) != NO_EXPERT}


class _TokenWriter:
    """Collects chunks to row groups of even size."""

    def __init__(self, path: Path, header: TraceHeader, moe_layers: tuple[int, ...], columns: int) -> None:
        self.moe_layers = moe_layers
        self.rows = 0
        self.columns = columns
        self._header = header
        self._schema = token_schema(moe_layers, columns)
        layer_paths = [f"layer_{layer}.list.element" for layer in moe_layers]
        self.file = pq.ParquetWriter(
            path,
            self._schema,
            compression=COMPRESSION,
            use_dictionary=[*layer_paths, "source", "domain", "phase", "window"],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in ("request_id", "position", "step")},
            write_statistics=["request_id", "window"],
            write_page_checksum=True,
        )
        self._rows_per_group = max(1, VALUES_PER_ROW_GROUP // max(1, len(moe_layers) * columns))
        self._pending: list[dict[str, npt.NDArray[Any]]] = []
        self._pending_rows = 0
        self._request_offset = 0
        self._next_request = 0
        self._reader_index = -1
        self._domain_number: npt.NDArray[np.int32] = np.full(1, -1, dtype=np.int32)

    def add(self, chunk: TokenChunk, reader: TraceReader, index: int, windows: _Windows) -> None:
        """Take a chunk; requests of different inputs get different numbers, equal domains the same one."""
        tokens = len(chunk.request_id_T)
        if index != self._reader_index:
            self._reader_index = index
            self._request_offset = self._next_request
            names = self._header.domain_names
            numbers = [names.index(name) for name in reader.header.domain_names]
            self._domain_number = np.array([*numbers, -1], dtype=np.int32)  # the last one is what -1 picks
        request_id_T = chunk.request_id_T + self._request_offset
        self._next_request = max(self._next_request, int(request_id_T.max()) + 1)
        columns: dict[str, npt.NDArray[Any]] = {
            "request_id": request_id_T,
            "position": chunk.position_T,
            "source": chunk.source_T,
            "domain": self._domain_number[chunk.domain_T],
            "phase": chunk.phase_T,
            "step": chunk.step_T,
            "window": np.full(tokens, windows.number(index, chunk.window), dtype=np.uint16),
        }
        for layer in self.moe_layers:
            columns[f"layer_{layer}"] = self._padded(chunk.topk_LTK[layer])
        self._pending.append(columns)
        self._pending_rows += tokens
        self.rows += tokens
        if self._pending_rows >= self._rows_per_group:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if not self._pending:
            return
        arrays = []
        for column in self._schema:
            parts = [columns[column.name] for columns in self._pending]
            arrays.append(_arrow(parts[0] if len(parts) == 1 else np.concatenate(parts), column.type))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self.file.write_batch(batch, row_group_size=2 * self._rows_per_group)
        self._pending, self._pending_rows = [], 0

    def finish(self, header: TraceFileHeader) -> None:
        self.file.add_key_value_metadata({METADATA_KEY: header.to_json()})

    def _padded(self, topk_TK: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
        missing = self.columns - topk_TK.shape[1]
        if missing == 0:
            return topk_TK
        return np.pad(topk_TK, ((0, 0), (0, missing)), constant_values=NO_EXPERT)


def _write_counts(
    path: Path,
    readers: Sequence[TraceReader],
    header: TraceHeader,
    windows: _Windows,
    progress: Callable[[float], None] | None,
) -> tuple[tuple[int, ...], int, int]:
    """Write counts; where only some inputs know sources, they are added up in all."""
    schema = count_schema(header.experts)
    has_traffic = np.zeros(header.layers, dtype=bool)
    chunks = 0
    with pq.ParquetWriter(
        path, schema, compression=COMPRESSION, write_statistics=["chunk", "window"], write_page_checksum=True
    ) as file:
        for index, chunk in _all_chunks(readers, progress):
            if not isinstance(chunk, CountChunk):
                continue
            tokens_LSE = chunk.tokens_LSE
            if header.source_ranks is None:
                tokens_LSE = tokens_LSE.sum(axis=1, keepdims=True)
            has_traffic |= tokens_LSE.max(axis=(1, 2)) > 0
            window = windows.number(index, chunk.window)
            file.write_batch(_count_batch(schema, tokens_LSE, chunk, number=chunks, window=window))
            chunks += 1
        moe_layers = tuple(int(layer) for layer in np.flatnonzero(has_traffic))
        file_header = _file_header(readers, header, moe_layers, 0, windows)
        file.add_key_value_metadata({METADATA_KEY: file_header.to_json()})
    return moe_layers, 0, chunks


def _count_batch(
    schema: pa.Schema, tokens_LSE: npt.NDArray[np.int64], chunk: CountChunk, *, number: int, window: int
) -> pa.RecordBatch:
    busy_LS = tokens_LSE.max(axis=2) > 0
    busy_LS[0, 0] = True  # so that a chunk without traffic is still there
    layer_R, source_R = np.nonzero(busy_LS)
    constant = {
        "chunk": number,
        "window": window,
        "steps": chunk.steps,
        "seconds": chunk.seconds,
        "phase": PHASES.index(chunk.phase),
    }
    columns: dict[str, Any] = {name: np.full(len(layer_R), value) for name, value in constant.items()}
    columns |= {"layer": layer_R, "source": source_R}
    columns["tokens"] = tokens_LSE[layer_R, source_R]
    return pa.RecordBatch.from_arrays([_arrow(columns[column.name], column.type) for column in schema], schema=schema)


def _arrow(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Wrap an array for Arrow without copying; rows become lists where ``kind`` is a list."""
    # From the buffer: pa.array() imports pandas where that is installed, 46 MB for nothing.
    element = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
    flat = np.ascontiguousarray(values, dtype=element.to_pandas_dtype()).reshape(-1)
    array = pa.Array.from_buffers(element, flat.size, [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(array, type=kind) if element is not kind else array


def _all_chunks(
    readers: Sequence[TraceReader], progress: Callable[[float], None] | None
) -> Iterator[tuple[int, CountChunk | TokenChunk]]:
    """Yield the number of the reader with each of its chunks, and report the share of inputs that is done."""
    for index, reader in enumerate(readers):
        for chunk in reader.chunks():
            yield index, chunk
        if progress is not None:
            progress((index + 1) / len(readers))


def _file_header(
    readers: Sequence[TraceReader],
    header: TraceHeader,
    moe_layers: tuple[int, ...],
    columns: int,
    windows: _Windows,
) -> TraceFileHeader:
    return TraceFileHeader(
        trace=header,
        moe_layers=moe_layers,
        columns_per_token=columns,
        window_names=windows.names,
        inputs=tuple({"name": reader.name, "sha256": reader.content_hash} for reader in readers),
        notices=tuple(dict.fromkeys(notice for reader in readers for notice in reader.notices)),
        moeplan_version=version("moeplan"),
    )
