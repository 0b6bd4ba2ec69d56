"""Tables of expert ids as they come out of JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import BadMapShape, ExpertIdRange
from placement.notice import Notice

LARGEST_ID = 2**31 - 1


def slot_table(value: Any, *, key: str) -> tuple[npt.NDArray[np.int32], list[Notice]]:
    """Turn ``[[id, ...], ...]`` into an int32 array [L, P].

    Ids written as ``3.0`` become ``3`` with a ``FLOAT_IDS`` notice.

    Raises
    ------
    BadMapShape
        The table is empty, flat, ragged or too deep, or an entry is no whole number.
    ExpertIdRange
        An id does not fit into 32 bits.
    """
    rows = _rows(value, key=key)
    width = len(rows[0])
    floats = 0
    slots_LP = np.empty((len(rows), width), dtype=np.int32)
    for layer, row in enumerate(rows):
        if len(row) != width:
            raise BadMapShape(f"layer {layer} of {key} has {len(row)} slots, layer 0 has {width}; all need the same.")
        for slot, entry in enumerate(row):
            slots_LP[layer, slot] = expert_id(entry, where=f"layer {layer}, slot {slot} of {key}")
            floats += isinstance(entry, float)
    if not floats:
        return slots_LP, []
    detail = f"{floats} expert ids of {key} are written as fractions (like {float(slots_LP[0, 0])}): read as whole ids."
    return slots_LP, [Notice("FLOAT_IDS", detail)]


def expert_id(entry: Any, *, where: str) -> int:
    """Return a whole number that fits into 32 bits, or raise naming ``where`` it was."""
    whole = isinstance(entry, float) and entry.is_integer()
    if isinstance(entry, bool) or not (isinstance(entry, int) or whole):
        raise BadMapShape(f"{where} holds {_shown(entry)}; an expert id is a whole number.")
    if abs(entry) > LARGEST_ID:
        raise ExpertIdRange(f"{where} names expert {_shown(entry)}; ids run from 0 to the number of experts - 1.")
    return int(entry)


def _rows(value: Any, *, key: str) -> list[list[Any]]:
    if not isinstance(value, list) or not value:
        raise BadMapShape(f"{key} is {_shown(value)}; it must be a list of layers, each a list of expert ids.")
    if not any(isinstance(row, list) for row in value):
        raise BadMapShape(
            f"{key} is a flat list of {len(value)} entries; write one list per decoder layer, also when all layers "
            "are alike."
        )
    for layer, row in enumerate(value):
        if not isinstance(row, list) or not row:
            raise BadMapShape(f"layer {layer} of {key} is {_shown(row)}; it must be a list of expert ids.")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)} entries" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
