"""vLLM's layout record.

No released vLLM reads a layout from a file: ``EPLBConfig`` has no such field up to 0.32, and the engine's balancer
starts from the trivial layout. The nearest real thing is the record that vllm-project/vllm#41141 ("offline EPLB", open)
loads with ``eplb_config.initial_mapping_path``: one JSON object on one line, MoE layers counted from 0.
"""

from __future__ import annotations

import json
from typing import Any

from placement.errors import BadMapShape
from placement.layout import Layout
from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.formats.assignments import ASSIGNMENTS_KEY, SLOTS_KEY, parse_assignments
from profiler.formats.moe_rows import MoeRows, moe_rows

FILE_SUFFIX = ".jsonl"
TYPE_KEY, RECORD_TYPE, RECORD_VERSION = "record_type", "eplb_initial_mapping", 1
REDUNDANT_KEY = "num_redundant_experts"


def parse_map(document: dict[str, Any]) -> tuple[MoeRows, int]:
    """Read rows, and the number of experts, from a parsed record.

    Raises
    ------
    BadMapShape, ExpertIdRange, SlotCountMismatch
    """
    version, redundant = document.get("version"), document.get(REDUNDANT_KEY)
    if version != RECORD_VERSION:
        raise BadMapShape(f"the record has version {version!r}; version {RECORD_VERSION} is read.")
    rows = parse_assignments(document, numbering="MoE layers")
    experts = -1 if isinstance(redundant, bool) or not isinstance(redundant, int) else len(rows.slots_RP[0]) - redundant
    if not 0 < experts <= len(rows.slots_RP[0]):
        raise BadMapShape(f"{REDUNDANT_KEY} is {redundant!r}; it is a number from 0, below {SLOTS_KEY}.")
    return rows, experts


def render_map(layout: Layout, model: ModelShape | None) -> bytes:
    """Return the record, with a newline behind it."""
    rows = moe_rows(layout, model, format="vllm")
    record = {
        TYPE_KEY: RECORD_TYPE,
        "version": RECORD_VERSION,
        REDUNDANT_KEY: layout.slots - layout.experts,
        SLOTS_KEY: layout.slots,
        ASSIGNMENTS_KEY: {str(index): row for index, row in enumerate(rows.slots_RP.tolist())},
    }
    return f"{json.dumps(record)}\n".encode()


def notice(layout: Layout) -> Notice:
    """Say what loads the file."""
    detail = (
        "no released vLLM (0.32 and before) loads a layout from a file; this record is for a vLLM with "
        "vllm-project/vllm#41141: --enable-eplb and --eplb-config with initial_mapping_path and "
        f"{REDUNDANT_KEY} {layout.slots - layout.experts}."
    )
    return Notice("NO_RELEASED_READER", detail)
