"""The moeplan trace: a Parquet file with a versioned header.

The header is JSON under the key ``moeplan`` of the file's key-value metadata, in the footer: a file cut short has
none. Version 1 holds either of

- tokens: ``request_id``, ``position``, ``source``, ``domain``, ``phase``, ``step``, ``window`` (index into the header's
  ``window_names``) and, for every layer with experts, ``layer_<l>``: ``fixed_size_list<uint16>[k]``;
- counts: ``chunk``, ``window``, ``layer``, ``source``, ``steps``, ``seconds``, ``phase`` and ``tokens``:
  ``fixed_size_list<int64>[experts]``. Rows of a chunk lie together in one row group; rows that are all zero are left
  out, except the first of a chunk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from placement.notice import Notice
from profiler.errors import TraceVersionUnknown, UnknownFormat, UnreadableDump
from profiler.files import unicode_only
from profiler.readers.counts import MAX_CELLS, MAX_EXPERTS
from profiler.readers.layer_rows import MAX_LAYERS
from profiler.trace import PHASE_NUMBERS, Phase, TraceHeader

FORMAT_VERSION = 1
METADATA_KEY = b"moeplan"
MAX_TOP_K = 1024
MAX_WINDOWS = 2**16
"""The column ``window`` has 16 bits."""

PHASES: tuple[Phase, ...] = tuple(sorted(PHASE_NUMBERS, key=lambda phase: PHASE_NUMBERS[phase]))
"""Phases in the order of their numbers."""

TOKEN_COLUMNS = {
    "request_id": pa.int64(),
    "position": pa.int32(),
    "source": pa.int32(),
    "domain": pa.int32(),
    "phase": pa.uint8(),
    "step": pa.int64(),
    "window": pa.uint16(),
}
COUNT_COLUMNS = {
    "chunk": pa.int64(),
    "window": pa.uint16(),
    "layer": pa.int32(),
    "source": pa.int32(),
    "steps": pa.int64(),
    "seconds": pa.float64(),
    "phase": pa.uint8(),
}


@dataclass(frozen=True)
class TraceFileHeader:
    """Everything about a moeplan trace but its body.

    Attributes
    ----------
    trace : TraceHeader
    moe_layers : tuple of int
        Layers with a column (tokens), or with any count.
    columns_per_token : int
        Length of the lists of ids; 0 for counts.
    window_names : tuple of str
    inputs : tuple of dict
        Name and SHA-256 of what was imported.
    notices : tuple of Notice
        Warnings of the import, which go with the trace from then on.
    moeplan_version : str
    """

    trace: TraceHeader
    moe_layers: tuple[int, ...]
    columns_per_token: int
    window_names: tuple[str, ...]
    inputs: tuple[dict[str, str], ...]
    notices: tuple[Notice, ...]
    moeplan_version: str

    def to_json(self) -> bytes:
        fields = asdict(self)
        trace = fields.pop("trace")
        fields["notices"] = [notice.to_dict() for notice in self.notices]
        document = unicode_only({"format_version": FORMAT_VERSION, **trace, **fields})
        return json.dumps(document, ensure_ascii=False).encode()

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None, *, name: str) -> TraceFileHeader:
        """Read the header of an opened Parquet file.

        Raises
        ------
        UnknownFormat
            Parquet, but no moeplan trace.
        TraceVersionUnknown
            Written by a newer moeplan.
        UnreadableDump
            A header that contradicts itself.
        """
        if not metadata or METADATA_KEY not in metadata:
            raise UnknownFormat(f"{name} is Parquet without a moeplan header; make traces with `moeplan trace import`.")
        try:
            fields = json.loads(metadata[METADATA_KEY])
            version = fields["format_version"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnreadableDump(f"the header of {name} is damaged: {error}.") from error
        if version != FORMAT_VERSION:
            raise TraceVersionUnknown(
                f"{name} has trace format version {version!r}; this moeplan reads version {FORMAT_VERSION}: "
                "update it, or import the recording again."
            )
        try:
            header = cls(
                trace=_trace_header(fields),
                moe_layers=_ints(fields["moe_layers"]),
                columns_per_token=_int(fields["columns_per_token"]),
                window_names=_strings(fields["window_names"]),
                inputs=tuple({"name": str(one["name"]), "sha256": str(one["sha256"])} for one in fields["inputs"]),
                notices=tuple(Notice(str(one["code"]), str(one["detail"])) for one in fields["notices"]),
                moeplan_version=str(fields["moeplan_version"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableDump(f"the header of {name} is damaged: {type(error).__name__} at {error}.") from error
        header._require_consistent(name)
        return header

    def _require_consistent(self, name: str) -> None:
        trace = self.trace
        sane = (
            0 < trace.layers <= MAX_LAYERS
            and 0 < trace.experts <= MAX_EXPERTS
            and trace.layers * trace.experts * (trace.source_ranks or 1) <= 16 * MAX_CELLS
            and all(0 <= layer < trace.layers for layer in self.moe_layers)
            and len(set(self.moe_layers)) == len(self.moe_layers)
            and (trace.source_ranks is None or 0 < trace.source_ranks <= MAX_EXPERTS)
            and (trace.kind == "counts" or 0 < self.columns_per_token <= MAX_TOP_K)
        )
        if not sane:
            raise UnreadableDump(f"the header of {name} states impossible sizes ({trace.layers} x {trace.experts}).")


def token_schema(moe_layers: tuple[int, ...], columns_per_token: int) -> pa.Schema:
    """Return the Arrow schema of a trace of tokens."""
    ids = pa.list_(pa.field("element", pa.uint16(), nullable=False), columns_per_token)
    layers = {f"layer_{layer}": ids for layer in moe_layers}
    return _schema({**TOKEN_COLUMNS, **layers})


def count_schema(experts: int) -> pa.Schema:
    """Return the Arrow schema of a trace of counts."""
    tokens = pa.list_(pa.field("element", pa.int64(), nullable=False), experts)
    return _schema({**COUNT_COLUMNS, "tokens": tokens})


def _schema(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


def _trace_header(fields: Mapping[str, Any]) -> TraceHeader:
    if fields["kind"] not in ("counts", "tokens"):
        raise ValueError(f"kind {fields['kind']!r}")
    return TraceHeader(
        kind=fields["kind"],
        layers=_int(fields["layers"]),
        experts=_int(fields["experts"]),
        top_k=None if fields["top_k"] is None else _int(fields["top_k"]),
        source_ranks=None if fields["source_ranks"] is None else _int(fields["source_ranks"]),
        engine=str(fields["engine"]),
        engine_version=str(fields["engine_version"]),
        model=str(fields["model"]),
        domain_names=_strings(fields["domain_names"]),
    )


def _int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r}, which is no whole number")
    return value


def _ints(values: list[object]) -> tuple[int, ...]:
    return tuple(_int(value) for value in values)


def _strings(values: list[object]) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r}, which is no list of names")
    return tuple(str(value) for value in values)
