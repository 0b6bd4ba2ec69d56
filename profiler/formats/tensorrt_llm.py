"""TensorRT-LLM's load-balancer file (``moe_config.load_balancer``): YAML, decoder layers as keys, dense ones left out.

As its examples/wide_ep/ep_load_balancer writes it. ``layer_updates_per_iter: 0`` keeps the layout as it is. The engine
ignores the file without a word where attention data parallelism is off or the architecture has no balancer
(NVIDIA/TensorRT-LLM#18626, #13386, #12607), so a written file says nothing about what runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from placement.layout import Layout
from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.errors import UnknownFormat
from profiler.files import require_regular_file
from profiler.formats.assignments import ASSIGNMENTS_KEY, SLOTS_KEY, parse_assignments
from profiler.formats.moe_rows import MoeRows, moe_rows

FILE_SUFFIX = ".yaml"
FILE_SUFFIXES = (".yaml", ".yml")

UPDATES_KEY = "layer_updates_per_iter"
KEYS = (ASSIGNMENTS_KEY, UPDATES_KEY, SLOTS_KEY)
"""All that the engine's strict model takes."""

MAX_YAML_BYTES = 64 * 2**20


def read_yaml(path: Path) -> Any:
    """Parse a YAML file of plain values.

    Raises
    ------
    InputNotFound, UnreadableDump
        The file is missing or may not be read.
    UnknownFormat
        It is no YAML, too large, or holds more than plain values (tags, aliases).
    """
    with require_regular_file(path).open("rb") as file:
        content = file.read(MAX_YAML_BYTES + 1)
    if len(content) > MAX_YAML_BYTES:
        raise UnknownFormat(f"{path.name} is larger than {MAX_YAML_BYTES // 2**20} MiB, the most that is read as YAML.")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content, Loader=yaml.CSafeLoader)):
            raise UnknownFormat(f"{path.name} has YAML aliases; write its lists out.")
        return yaml.load(content, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise UnknownFormat(f"{path.name} is not YAML of plain values: {said}.") from error


def parse_map(document: dict[str, Any]) -> tuple[MoeRows, list[Notice]]:
    """Read rows from a parsed file; further keys are left out with an ``EXTRA_KEYS`` notice.

    Raises
    ------
    BadMapShape, ExpertIdRange, SlotCountMismatch
    """
    rows = parse_assignments(document, numbering="decoder layers")
    others = sorted(str(key) for key in document if key not in KEYS)
    if not others:
        return rows, []
    detail = f"TensorRT-LLM refuses to start with {', '.join(others)} in its file: left out; export the layout anew."
    return rows, [Notice("EXTRA_KEYS", detail)]


def render_map(layout: Layout, model: ModelShape | None) -> bytes:
    """Return the file's text: a layer per line."""
    rows = moe_rows(layout, model, format="tensorrt-llm")
    lines = [f"  {layer}: {row}" for layer, row in zip(rows.layer_of_row, rows.slots_RP.tolist(), strict=True)]
    return "\n".join((f"{ASSIGNMENTS_KEY}:", *lines, f"{UPDATES_KEY}: 0", f"{SLOTS_KEY}: {layout.slots}", "")).encode()


def notice(layout: Layout) -> Notice:
    """Say what the engine may do with the file."""
    detail = (
        "TensorRT-LLM takes this file as moe_config.load_balancer, but ignores it without a word when attention data "
        f"parallelism is off or the architecture has no balancer: with ep_size {layout.gpus}, record its statistics "
        "again and compare the loads with the plan's before calling it applied."
    )
    return Notice("LAYOUT_NOT_APPLIED", detail)
