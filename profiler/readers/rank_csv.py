"""Per-rank CSV files of early SGLang recorders: ``layer_id,expert_id,count``."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from placement.notice import Notice
from profiler.errors import BadCountShape, BadCountType, NonFiniteCount, UnreadableDump
from profiler.readers.counts import (
    MAX_EXPERTS,
    MAX_SHARED_EXPERTS,
    CountsReader,
    RecordedCounts,
    exact_number,
    experts_assumed_notice,
    require_bounded_total,
    require_sane_size,
    whole_count,
)
from profiler.readers.layer_rows import MAX_LAYERS
from profiler.readers.options import ReadOptions
from profiler.readers.rank_files import missing_ranks, sources_repeated_notice

HEADER = ["layer_id", "expert_id", "count"]
MAX_CSV_BYTES = 64 * 2**20
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_RANK = re.compile(r"rank_?(\d{1,6})")

Counts = dict[tuple[int, int], int]


def open_rank_csvs(paths: Sequence[Path], options: ReadOptions, *, name: str) -> CountsReader:
    """Open the CSV files of one recording; their counts are added up.

    A (layer, expert) without a row is zero. The recorder that wrote these files does not say whether a rank counts
    its own tokens or all of them, so home GPUs stay unknown (reported in sgl-project/sglang#5275).

    Raises
    ------
    UnreadableDump, BadCountType, BadCountShape, NegativeCount, CountOutOfRange
        Naming file and line.
    """
    ordered = sorted(paths, key=lambda path: path.name)
    files = [_read(path) for path in ordered]
    layers = sorted({layer for file in files for layer, _ in file})
    if not layers:
        raise BadCountShape(f"{name} holds no counts, only the header.")
    highest = max(expert for file in files for _, expert in file)
    experts = max(highest + 1, options.known_experts or 0)
    require_sane_size(len(layers), experts, name=name)
    row_of = {layer: row for row, layer in enumerate(layers)}
    total_RX = np.zeros((len(layers), experts), dtype=np.int64)
    for path, file in zip(ordered, files, strict=True):
        counts_RX = _table(file, row_of, total_RX.shape)
        require_bounded_total(counts_RX, where=path.name)
        require_bounded_total(total_RX, where=name)
        total_RX += counts_RX
    ranks = _ranks(ordered)
    notices: tuple[Notice, ...] = ()
    if len(files) > 1 and all(file == files[0] for file in files[1:]):
        notices += (sources_repeated_notice(name, len(files)),)
    if options.known_experts is None:
        notices += (experts_assumed_notice(name, highest + 1),)
    recorded = RecordedCounts(
        total_RX[None],
        (name,),
        (0,),
        labels_R=layers,
        engine="sglang",
        facts={"files": len(files), "ranks_merged": ranks if ranks is not None else len(files)},
        notices=notices,
        missing_ranks=missing_ranks(ranks, expected=options.expected_ranks) if ranks is not None else (),
    )
    return CountsReader(name=name, paths=ordered, recorded=recorded, options=options)


def is_rank_csv(first_line: bytes) -> bool:
    """Tell from its first line whether a file is a CSV of counts."""
    text = first_line.decode("utf-8-sig", errors="replace")
    return [field.strip().strip('"') for field in text.strip().split(",")] == HEADER


def _ranks(paths: Sequence[Path]) -> list[int] | None:
    """Return the rank in each file name, or None where a name has none."""
    matches = [_RANK.search(path.name) for path in paths]
    ranks = [int(match[1]) for match in matches if match]
    return sorted(ranks) if len(ranks) == len(paths) else None


def _read(path: Path) -> Counts:
    with path.open("rb") as file:
        content = file.read(MAX_CSV_BYTES + 1)
    if len(content) > MAX_CSV_BYTES:
        raise UnreadableDump(
            f"{path.name} is larger than {MAX_CSV_BYTES // 2**20} MiB, far above any counts by expert."
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableDump(f"{path.name} is not text in UTF-8 (byte {error.start}).") from error
    rows = csv.reader(io.StringIO(text, newline=""))
    counts: Counts = {}
    lines: dict[tuple[int, int], int] = {}
    try:
        for fields in rows:
            where = f"line {rows.line_num} of {path.name}"
            if rows.line_num == 1 or not fields:
                continue
            if len(fields) != len(HEADER):
                raise UnreadableDump(f"{where} has {len(fields)} fields; {','.join(HEADER)} are needed.")
            place = (
                _id(fields[0], "layer_id", MAX_LAYERS, where),
                _id(fields[1], "expert_id", MAX_EXPERTS + MAX_SHARED_EXPERTS, where),
            )
            if place in counts:
                raise BadCountShape(
                    f"{where} counts layer {place[0]}, expert {place[1]} again (first on {lines[place]})."
                )
            lines[place] = rows.line_num
            counts[place] = _count(fields[2], where)
    except csv.Error as error:
        raise UnreadableDump(f"line {rows.line_num} of {path.name} is no CSV: {error}.") from error
    return counts


def _id(field: str, what: str, limit: int, where: str) -> int:
    text = field.strip()
    if not (text.isascii() and text.isdigit()):
        raise BadCountType(f"{where} has the {what} {field[:40]!r}; a number from 0 is needed.")
    value = int(text) if len(text) <= 9 else limit
    if value >= limit:
        raise BadCountShape(f"{where} has the {what} {text[:40]}; it must be below {limit}.")
    return value


def _count(field: str, where: str) -> int:
    text = field.strip()
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise NonFiniteCount(f"{where} has the count {text}; counts are finite.")
    if not _NUMBER.fullmatch(text):
        raise BadCountType(f"{where} has the count {field[:40]!r}; a whole number is needed.")
    return whole_count(exact_number(text), where=f"the count on {where}")


def _table(file: Counts, row_of: dict[int, int], shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    counts_RX = np.zeros(shape, dtype=np.int64)
    for (layer, expert), count in file.items():
        counts_RX[row_of[layer], expert] = count
    return counts_RX
