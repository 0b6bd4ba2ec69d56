"""``initial_global_assignments``: experts slot by slot under the number of a layer.

TensorRT-LLM's load balancer and the offline mapping proposed for vLLM share this table. Every successive
slots / GPUs entries of a row are one GPU's.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from placement.errors import BadMapShape, SlotCountMismatch
from profiler.formats.expert_ids import slot_table
from profiler.formats.moe_rows import MoeRows, Numbering

ASSIGNMENTS_KEY = "initial_global_assignments"
SLOTS_KEY = "num_slots"

_LAYER = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)


def parse_assignments(document: dict[str, Any], *, numbering: Numbering) -> MoeRows:
    """Read the table, its rows in the order of their layers.

    Raises
    ------
    BadMapShape
        No table, a key that is no layer, or rows that are none.
    SlotCountMismatch
        Rows are not ``num_slots`` wide.
    """
    table = document.get(ASSIGNMENTS_KEY)
    if not isinstance(table, dict) or not table:
        raise BadMapShape(f"{ASSIGNMENTS_KEY} must be an object with a list of expert ids for every layer.")
    rows = {_layer(key): row for key, row in table.items()}
    if len(rows) != len(table):
        raise BadMapShape(f"{ASSIGNMENTS_KEY} has a layer twice.")
    layers = sorted(rows)
    if numbering == "MoE layers" and layers != list(range(len(layers))):
        raise BadMapShape(
            f"{ASSIGNMENTS_KEY} has the layers {layers[:8]}; layers with experts are counted from 0 here, each once."
        )
    slots_RP, _ = slot_table([rows[layer] for layer in layers], key=ASSIGNMENTS_KEY)
    slots = document.get(SLOTS_KEY)
    if isinstance(slots, bool) or slots != slots_RP.shape[1]:
        raise SlotCountMismatch(f"{SLOTS_KEY} is {slots!r}, but rows have {slots_RP.shape[1]} entries.")
    return MoeRows(slots_RP.astype(np.int32), tuple(layers), numbering)


def _layer(key: Any) -> int:
    text = str(key)
    if isinstance(key, bool) or not _LAYER.fullmatch(text):
        raise BadMapShape(f"{ASSIGNMENTS_KEY} has the key {text[:40]!r}; keys are layers.")
    return int(text)
