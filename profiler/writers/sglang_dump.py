"""Dumps as SGLang's expert distribution recorder writes them: same file names, keys, types and shapes.

Source: ``srt/eplb/expert_distribution.py``, SGLang 0.5.16 and 0.5.23. Unlike the engine, a file appears under its name
only when it is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import BadOption
from profiler.files import atomic_output

RECORDED_TOP_K = 8
"""Width of the recorder's ids; the engine fails on a model with a larger top-k."""


@dataclass(frozen=True, eq=False)
class RecordedTokens:
    """One forward pass of one rank, for a per_token dump.

    Attributes
    ----------
    forward_pass_id : int
    ids_LTK : ndarray
        Integers [L, T, K], slot ids, -1 where there is none; K up to 8.
    input_ids, positions : sequence of int
        [T], vocabulary id and position of every token.
    extend_seq_lens : sequence of int or None
        Tokens of each sequence of a prefill pass, None in a decode pass.
    forward_mode : int
        1 prefill, 2 decode; see :mod:`profiler.readers.sglang_requests`.
    """

    forward_pass_id: int
    ids_LTK: npt.NDArray[np.signedinteger[Any]]
    input_ids: Sequence[int]
    positions: Sequence[int]
    extend_seq_lens: Sequence[int] | None
    forward_mode: int

    def __post_init__(self) -> None:
        tokens = self.ids_LTK.shape[1] if self.ids_LTK.ndim == 3 else -1
        if not len(self.input_ids) == len(self.positions) == tokens:
            raise BadOption(
                f"ids_LTK has shape {list(self.ids_LTK.shape)}, with {len(self.input_ids)} input_ids and "
                f"{len(self.positions)} positions; all must name the same tokens."
            )
        if self.ids_LTK.shape[2] > RECORDED_TOP_K:
            raise BadOption(
                f"top-k is {self.ids_LTK.shape[2]}; the recorder holds up to {RECORDED_TOP_K} ids per token."
            )


def stat_file_name(time_s: float) -> str:
    """Return the recorder's name for a stat dump written at a time (seconds since 1970)."""
    return f"expert_distribution_recorder_{time_s}.pt"


def rank_file_name(time_s: float, rank: int) -> str:
    """Return the recorder's name for one rank's per_pass or per_token dump."""
    return f"expert_distribution_recorder_{time_s}_{rank}.pt"


def write_stat(path: Path, logical_count_NLE: npt.NDArray[np.integer[Any]], *, rank: int = 0) -> None:
    """Write a stat dump.

    Parameters
    ----------
    path : Path
        Named by :func:`stat_file_name` if it shall look like the engine's.
    logical_count_NLE : ndarray
        Counts [steps, L, E] below 2^31; unused steps of the ring are zero.
    rank : int
        Only rank 0 writes one.

    Raises
    ------
    BadOption
        A shape or a count that the recorder does not have.
    OutputNotWritable
    """
    import torch

    counts_NLE = np.asarray(logical_count_NLE)
    if counts_NLE.ndim != 3:
        raise BadOption(f"logical_count has shape {list(counts_NLE.shape)}; [steps, layers, experts] is needed.")
    _save(
        path,
        {
            "rank": rank,
            "logical_count": torch.from_numpy(_as_int32(counts_NLE, "logical_count")),
            "average_utilization_rate_over_window": None,
        },
    )


def write_per_pass(
    path: Path,
    passes: Sequence[tuple[int, npt.NDArray[np.integer[Any]]]],
    physical_to_logical_map_LP: npt.NDArray[np.integer[Any]],
    *,
    rank: int,
) -> None:
    """Write one rank's per_pass dump.

    Parameters
    ----------
    path : Path
        Named by :func:`rank_file_name` if it shall look like the engine's.
    passes : sequence of (int, ndarray)
        Pass id and tokens per slot [L, P].
    physical_to_logical_map_LP : ndarray
        Layout at the time of the dump, [L, P].
    rank : int

    Raises
    ------
    BadOption, OutputNotWritable
    """
    import torch

    records = [
        {
            **_record_head(pass_id, rank),
            "global_physical_count": torch.from_numpy(_as_int32(counts_LP, "global_physical_count")),
        }
        for pass_id, counts_LP in passes
    ]
    _save_records(path, records, physical_to_logical_map_LP)


def write_per_token(
    path: Path,
    passes: Sequence[RecordedTokens],
    physical_to_logical_map_LP: npt.NDArray[np.integer[Any]],
    *,
    rank: int,
) -> None:
    """Write one rank's per_token dump; slot counts are added up from the ids, as the recorder does.

    Parameters
    ----------
    path : Path
        Named by :func:`rank_file_name` if it shall look like the engine's.
    passes : sequence of RecordedTokens
    physical_to_logical_map_LP : ndarray
        Layout at the time of the dump, [L, P].
    rank : int

    Raises
    ------
    BadOption
        An id beyond the layout's slots.
    OutputNotWritable
    """
    import torch

    slots = physical_to_logical_map_LP.shape[1]
    records = []
    for entry in passes:
        ids_LTX = np.full((*entry.ids_LTK.shape[:2], RECORDED_TOP_K), -1, dtype=np.int32)
        ids_LTX[:, :, : entry.ids_LTK.shape[2]] = entry.ids_LTK
        records.append(
            {
                **_record_head(entry.forward_pass_id, rank),
                "input_ids": [int(token) for token in entry.input_ids],
                "positions": [int(position) for position in entry.positions],
                "extend_seq_lens": None if entry.extend_seq_lens is None else [int(n) for n in entry.extend_seq_lens],
                "forward_mode": int(entry.forward_mode),
                "topk_ids_of_layer": torch.from_numpy(ids_LTX),
                "misc_objects": [],
                "global_physical_count": torch.from_numpy(_slot_counts(ids_LTX, slots)),
            }
        )
    _save_records(path, records, physical_to_logical_map_LP)


def _record_head(pass_id: int, rank: int) -> dict[str, Any]:
    return {"forward_pass_id": int(pass_id), "rank": int(rank), "gatherer_key": "primary"}


def _slot_counts(ids_LTX: npt.NDArray[np.int32], slots: int) -> npt.NDArray[np.int32]:
    if ids_LTX.size and not -1 <= int(ids_LTX.min()) <= int(ids_LTX.max()) < slots:
        raise BadOption(f"slot ids run from {ids_LTX.min()} to {ids_LTX.max()}; -1 to {slots - 1} are possible.")
    rows = [np.bincount(ids_TX[ids_TX >= 0], minlength=slots) for ids_TX in ids_LTX]
    return np.stack(rows).astype(np.int32)


def _as_int32(counts: npt.NDArray[np.integer[Any]], key: str) -> npt.NDArray[np.int32]:
    counts = np.asarray(counts)
    if counts.dtype.kind not in "iu" or (counts.size and not 0 <= int(counts.min()) <= int(counts.max()) < 2**31):
        raise BadOption(f"{key} holds {counts.dtype} values outside of 0 to 2^31 - 1, which the recorder cannot hold.")
    return np.array(counts, dtype=np.int32, order="C")  # a copy: torch wants to own what it saves


def _save_records(path: Path, records: list[dict[str, Any]], map_LP: npt.NDArray[np.integer[Any]]) -> None:
    import torch

    last_map = torch.from_numpy(np.array(map_LP, dtype=np.int64, order="C"))
    _save(path, {"records": records, "last_physical_to_logical_map": last_map})


def _save(path: Path, content: dict[str, Any]) -> None:
    import torch

    # Through a handle, for torch puts a file's name into the file: equal content shall be equal bytes.
    with atomic_output(path) as temporary, temporary.open("wb") as file:
        torch.save(content, file)
