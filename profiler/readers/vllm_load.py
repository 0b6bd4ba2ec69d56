"""Expert loads of vLLM: JSON lines with ``"record_type": "eplb_load_stats"``.

No released vLLM (0.32 and before) writes loads to a file; its balancer keeps them in memory. These records are those of
the open proposal vllm-project/vllm#41141 ("offline EPLB"), whose layouts moeplan writes too: per record ``step``,
``num_ranks``, ``expert_load`` [MoE layers, slots], added up over ranks, and ``p2l_map``, the expert of every slot then.
Lines of other types are skipped.

Home GPUs are unknown. Where every data-parallel rank hands all tokens to the experts (vllm-project/vllm#22167), loads
are multiples of what was routed; shares, and so plans, do not change by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import ExpertIdRange
from placement.notice import Notice
from profiler.errors import BadCountShape, BadCountType, BadJson, UnknownFormat
from profiler.formats.expert_ids import slot_table
from profiler.json_file import parse_json
from profiler.readers.counts import (
    MAX_EXPERTS,
    CountsReader,
    RecordedCounts,
    require_bounded_total,
    require_sane_size,
    whole_counts,
)
from profiler.readers.options import ReadOptions

TYPE_KEY, STATS_TYPE, LAYOUT_TYPE = "record_type", "eplb_load_stats", "eplb_initial_mapping"
VERSION = 1
MAX_FILE_BYTES = 2**30
MAX_LINE_BYTES = 64 * 2**20


def is_vllm_load(head: bytes) -> bool:
    """Tell from a file's beginning whether it holds typed records, one on a line."""
    return f'"{TYPE_KEY}"'.encode() in head.split(b"\n", 1)[0]


def open_vllm_load(path: Path, options: ReadOptions) -> CountsReader:
    """Open a file of load records; all of them are one window, in the order of the file.

    Raises
    ------
    BadJson
        A line that is no JSON, or a file larger than 1 GiB.
    UnknownFormat
        No record of loads, or of another version.
    BadCountShape, BadCountType, NonFiniteCount, NegativeCount, CountOutOfRange
        Naming line and place.
    BadMapShape, ExpertIdRange
        The same for ``p2l_map``.
    """
    tables: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]] = []
    steps, ranks, seen = [], set(), set()
    notices: list[Notice] = []
    width = 0
    for line, record in _records(path):
        seen.add(str(record.get(TYPE_KEY)))
        if record.get(TYPE_KEY) != STATS_TYPE:
            continue
        where = f"line {line} of {path.name}"
        if record.get("version") != VERSION:
            raise UnknownFormat(f"{where} has version {record.get('version')!r}; version {VERSION} is read.")
        load_RP, slots_RP, more = _tables(record, where)
        if tables and load_RP.shape[0] != tables[0][0].shape[0]:
            raise BadCountShape(
                f"{where} has {load_RP.shape[0]} layers, the records before have {tables[0][0].shape[0]}."
            )
        width = max(width, int(slots_RP.max()) + 1)
        require_sane_size(len(load_RP), width, name=path.name)
        require_bounded_total(load_RP, where=where)
        tables.append((load_RP, slots_RP))
        steps.append(record.get("step"))
        ranks.add(record.get("num_ranks"))
        notices = notices or more
    if not tables:
        raise UnknownFormat(_without_loads(path.name, seen))
    counts_CRX = np.zeros((len(tables), len(tables[0][0]), width), dtype=np.int64)
    for counts_RX, (load_RP, slots_RP) in zip(counts_CRX, tables, strict=True):
        np.add.at(counts_RX, (np.arange(len(load_RP))[:, None], slots_RP), load_RP)
    recorded = RecordedCounts(
        counts_CRX,
        (path.name,) * len(tables),
        (0,) * len(tables),
        numbering="unknown",
        engine="vllm",
        facts={
            "form": STATS_TYPE,
            "records": len(tables),
            "steps": [steps[0], steps[-1]],
            "ranks": sorted(ranks, key=str),
        },
        notices=tuple(notices),
    )
    return CountsReader(name=path.name, paths=[path], recorded=recorded, options=options)


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and object of every line that is not empty."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BadJson(f"{path.name} is larger than {MAX_FILE_BYTES // 2**20} MiB, the most that is read as JSON lines.")
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"line {number} of {path.name}"
            if len(line) > MAX_LINE_BYTES:
                raise BadJson(
                    f"{where} is longer than {MAX_LINE_BYTES // 2**20} MiB, the most that is read as a record."
                )
            try:
                text = line.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise BadJson(f"{where} is not text in UTF-8 (byte {error.start}), so it is no JSON.") from error
            if not text.strip():
                continue
            record = parse_json(text, name=where)
            if not isinstance(record, dict):
                raise BadJson(f"{where} holds no object; every line is one record.")
            yield number, record


def _tables(record: dict[str, Any], where: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], list[Notice]]:
    """Return loads and experts of all slots, both [MoE layers, slots]."""
    slots_RP, notices = slot_table(record.get("p2l_map"), key=f"p2l_map in {where}")
    if int(slots_RP.min()) < 0 or int(slots_RP.max()) >= MAX_EXPERTS:
        row, slot = (int(each) for each in np.argwhere((slots_RP < 0) | (slots_RP >= MAX_EXPERTS))[0])
        raise ExpertIdRange(
            f"p2l_map[{row}][{slot}] in {where} names expert {int(slots_RP[row, slot])}; ids run from 0 to "
            f"{MAX_EXPERTS - 1}."
        )
    loads = record.get("expert_load")
    if not isinstance(loads, list) or len(loads) != len(slots_RP):
        found = f"{len(loads)} rows" if isinstance(loads, list) else f"{loads!r}"[:40]
        raise BadCountShape(f"expert_load in {where} is {found}; p2l_map has {len(slots_RP)} layers.")
    load_RP = np.empty(slots_RP.shape, dtype=np.int64)
    for row, values in enumerate(loads):
        at = f"expert_load[{row}] in {where}"
        if not isinstance(values, list) or len(values) != slots_RP.shape[1]:
            raise BadCountShape(f"{at} has not the {slots_RP.shape[1]} slots of p2l_map.")
        for slot, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise BadCountType(f"expert_load[{row}][{slot}] in {where} is {value!r}; a count is a whole number.")
        load_RP[row] = whole_counts(np.array(values), where=at)
    return load_RP, slots_RP, notices


def _without_loads(name: str, seen: set[str]) -> str:
    if LAYOUT_TYPE in seen:
        return f"{name} is a layout ({LAYOUT_TYPE}), not a recording; it goes to `moeplan evaluate` or `diff`."
    return f"{name} has records of {', '.join(sorted(seen)[:5]) or 'nothing'}; loads are in records of {STATS_TYPE}."
