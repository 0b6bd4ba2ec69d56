"""Rank files of SGLang's recorder in the modes ``per_pass`` and ``per_token``: structure and values checked.

Source: ``srt/eplb/expert_distribution.py`` (``_DetailAccumulator``, ``_DetailSinglePassGatherer``), SGLang 0.5.16 and
0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from profiler.errors import UnreadableDump
from profiler.readers.counts import whole_counts
from profiler.readers.layer_rows import MAX_LAYERS

RANK_FILE = re.compile(r"expert_distribution_recorder_(?P<time>\d+(?:\.\d+)?)_(?P<rank>\d+)\.pt")
"""Name that the recorder gives the file of one rank."""

MAX_CELLS = 2**22
"""Layers x slots, or layers x experts, of any engine: forty times the largest model's."""
MAX_ID_COLUMNS = 64
"""The recorder writes 8."""
MAX_RANKS = 2**16
MAX_NUMBER = 2**40
"""Of passes and ranks; beyond it is damage."""

Integers = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, eq=False)
class PassRecord:
    """What one rank recorded of one forward pass.

    Attributes
    ----------
    pass_id : int
        The rank's own number of the pass.
    counts_LP : ndarray or None
        int64 [L, P] tokens per slot; None in old per_token records.
    ids_LTX : ndarray or None
        Integers [L, T, 8], slot ids padded with -1; None in per_pass records.
    position_T, token_T : ndarray
        int32 [T], position in its sequence and vocabulary id of every token, -1 where unknown.
    sequence_tokens : tuple of int
        Tokens of each sequence in a prefill pass, else empty.
    forward_mode : int
        See :mod:`profiler.readers.sglang_requests`.
    """

    pass_id: int
    counts_LP: npt.NDArray[np.int64] | None
    ids_LTX: Integers | None
    position_T: npt.NDArray[np.int32]
    token_T: npt.NDArray[np.int32]
    sequence_tokens: tuple[int, ...]
    forward_mode: int

    @property
    def tokens(self) -> int:
        return 0 if self.ids_LTX is None else int(self.ids_LTX.shape[1])


@dataclass(frozen=True, eq=False)
class RankFile:
    """One rank's file.

    Attributes
    ----------
    path : Path
    rank : int
        Expert-parallel rank: the GPU.
    mode : {"per_pass", "per_token"}
    passes : tuple of PassRecord
    map_LP : ndarray or None
        int64 [L, P], the layout at the time of the dump.
    group_ranks : int or None
        Size of the all-to-all group, where the records say.
    """

    path: Path
    rank: int
    mode: Literal["per_pass", "per_token"]
    passes: tuple[PassRecord, ...]
    map_LP: npt.NDArray[np.int64] | None
    group_ranks: int | None


def read_rank_file(path: Path, loaded: Mapping[str, Any]) -> RankFile:
    """Check what :func:`profiler.readers.pt_archive.load_pt` returned.

    The rank is the one in the file's name, if it has the recorder's, else the one in the records. The token lists of
    ``loaded`` are taken out of it as they are read, so that they are not held twice.

    Raises
    ------
    UnreadableDump, BadCountType, NegativeCount
        Naming the record.
    """
    records = loaded["records"]
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise UnreadableDump(f"records of {path.name} must be a list of dicts.")
    named = RANK_FILE.fullmatch(path.name)
    ranks = {_integer(record, "rank", f"records[{index}] of {path.name}") for index, record in enumerate(records)}
    if len(ranks) > 1:
        raise UnreadableDump(f"{path.name} holds records of ranks {sorted(ranks)}; a file holds one rank's.")
    per_token = any("topk_ids_of_layer" in record for record in records)
    passes = tuple(_pass(record, per_token, f"records[{index}] of {path.name}") for index, record in enumerate(records))
    _require_equal_layers(passes, path.name)
    return RankFile(
        path=path,
        rank=int(named["rank"]) if named else next(iter(ranks), 0),
        mode="per_token" if per_token else "per_pass",
        passes=passes,
        map_LP=_map(loaded.get("last_physical_to_logical_map"), path.name),
        group_ranks=_group_ranks(records),
    )


def _pass(record: dict[str, Any], per_token: bool, where: str) -> PassRecord:
    counts = record.get("global_physical_count")
    ids = record.get("topk_ids_of_layer")
    if (ids is None) if per_token else (counts is None):
        missing = "topk_ids_of_layer" if per_token else "global_physical_count"
        raise UnreadableDump(f"{where} has no {missing}; the others have, or no record holds anything that is known.")
    tokens = 0 if ids is None else _ids(ids, where).shape[1]
    return PassRecord(
        pass_id=_integer(record, "forward_pass_id", where),
        counts_LP=None if counts is None else _counts(counts, where),
        ids_LTX=ids,
        position_T=_token_column(record, "positions", tokens, where),
        token_T=_token_column(record, "input_ids", tokens, where),
        sequence_tokens=_sequence_tokens(record.get("extend_seq_lens"), where),
        forward_mode=_integer(record, "forward_mode", where) if "forward_mode" in record else 0,
    )


def _integer(record: Mapping[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise UnreadableDump(f"{key} in {where} is {str(value)[:40]!r}; a whole number from 0 is needed.")
    return value


def _ids(ids: Any, where: str) -> Integers:
    if not isinstance(ids, np.ndarray) or ids.ndim != 3 or ids.dtype.kind != "i" or 0 in (ids.shape[0], ids.shape[2]):
        found = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else f"a {type(ids).__name__}"
        raise UnreadableDump(f"topk_ids_of_layer in {where} is {found}; integers [layers, tokens, 8] are needed.")
    if ids.shape[0] > MAX_LAYERS or ids.shape[2] > MAX_ID_COLUMNS:
        raise UnreadableDump(
            f"topk_ids_of_layer in {where} has shape {list(ids.shape)}; up to {MAX_LAYERS} layers and "
            f"{MAX_ID_COLUMNS} ids per token are read."
        )
    if ids.size and int(ids.min()) < -1:
        raise UnreadableDump(f"topk_ids_of_layer in {where} holds {int(ids.min())}; slot ids are >= 0, padding is -1.")
    return ids


def _counts(counts: Any, where: str) -> npt.NDArray[np.int64]:
    if not isinstance(counts, np.ndarray) or counts.ndim != 2 or not 0 < counts.size <= MAX_CELLS:
        found = list(counts.shape) if isinstance(counts, np.ndarray) else f"a {type(counts).__name__}"
        raise UnreadableDump(f"global_physical_count in {where} is {found}; a tensor [layers, slots] is needed.")
    return whole_counts(counts, where=f"global_physical_count in {where}")


def _token_column(record: dict[str, Any], key: str, tokens: int, where: str) -> npt.NDArray[np.int32]:
    """Read a list with one number per token; the recorder's buffer may hold fewer tokens than the pass had."""
    values = record.pop(key, None)
    if values is None:
        return np.full(tokens, -1, dtype=np.int32)
    column = _integer_array(values)
    if column is None or column.size < tokens:
        raise UnreadableDump(f"{key} in {where} is no list of {tokens} whole numbers, one per token.")
    known = (column[:tokens] >= 0) & (column[:tokens] < 2**31)
    return np.where(known, column[:tokens], -1).astype(np.int32)


def _integer_array(values: Any) -> Integers | None:
    if isinstance(values, list) and set(map(type, values)) <= {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            return None
    is_column = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind == "i"
    return values if is_column else None


def _sequence_tokens(value: Any, where: str) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(entry) is int and entry >= 0 for entry in value):
        raise UnreadableDump(f"extend_seq_lens in {where} is no list of whole numbers.")
    return tuple(value)


def _map(value: Any, name: str) -> npt.NDArray[np.int64] | None:
    if value is None:
        return None
    if (
        not isinstance(value, np.ndarray)
        or value.ndim != 2
        or value.dtype.kind != "i"
        or not 0 < value.size <= MAX_CELLS
    ):
        raise UnreadableDump(f"last_physical_to_logical_map of {name} is no tensor of integers [layers, slots].")
    return value.astype(np.int64)


def _group_ranks(records: list[dict[str, Any]]) -> int | None:
    """Find the size of the all-to-all group in what DeepEP's normal mode leaves in ``misc_objects``."""
    for record in records:
        entries = record.get("misc_objects")
        for entry in entries if isinstance(entries, list) else ():
            ranks = entry.get("num_tokens_per_rank") if isinstance(entry, dict) else None
            if isinstance(ranks, list) and 0 < len(ranks) <= MAX_RANKS:
                return len(ranks)
    return None


def _require_equal_layers(passes: tuple[PassRecord, ...], name: str) -> None:
    layers = {len(array) for entry in passes for array in (entry.counts_LP, entry.ids_LTX) if array is not None}
    slots = {entry.counts_LP.shape[1] for entry in passes if entry.counts_LP is not None}
    if len(layers) > 1 or len(slots) > 1:
        raise UnreadableDump(
            f"the records of {name} have {sorted(layers)} layers and {sorted(slots)} slots; all must have the same."
        )
