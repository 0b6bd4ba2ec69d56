"""Counts in JSON: ``logical_count`` (SGLang), a bare table (vLLM), or ``iteration_layer`` keys (TensorRT-LLM)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.errors import BadCountShape, UnknownFormat
from profiler.readers.counts import CountsReader, RecordedCounts
from profiler.readers.json_table import JsonTable, Row, shown
from profiler.readers.options import ReadOptions

_ITERATION_LAYER = re.compile(r"(\d{1,18})_(\d{1,9})")


def open_json_counts(path: Path, options: ReadOptions) -> CountsReader:
    """Open a JSON file of counts.

    Accepted are ``{"logical_count": [L, E] or [W, L, E]}``, the same table without the key, and
    ``{"<iteration>_<layer>": [E], ...}``.

    Raises
    ------
    BadJson
        No JSON, a key given twice, nested too deeply, or larger than 256 MiB.
    UnknownFormat
        JSON that holds something else.
    BadCountType, NonFiniteCount, NegativeCount, CountOutOfRange, BadCountShape
        With the JSON path of the value.
    """
    table = JsonTable(path)
    root = table.root
    if isinstance(root, dict) and "logical_count" in root:
        recorded = _recorded_table(
            table, root["logical_count"], "$.logical_count", path.name, {"form": "logical_count"}
        )
    elif isinstance(root, dict) and root and all(_ITERATION_LAYER.fullmatch(key) for key in root):
        recorded = _recorded_keys(table, root, path.name)
    elif isinstance(root, (list, Row)):
        recorded = _recorded_table(table, root, "$", path.name, {"form": "rows"})
    else:
        raise UnknownFormat(_other_json(path.name, root))
    table.require_rest_is_json()
    return CountsReader(name=path.name, paths=[path], recorded=recorded, options=options)


def _recorded_table(table: JsonTable, value: Any, at: str, name: str, facts: dict[str, object]) -> RecordedCounts:
    """Read [L, E] as one window and [W, L, E] as W windows."""
    windows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    paths = [at] if windows is not value else [f"{at}[{window}]" for window in range(len(windows))]
    first = table.rows_of(windows[0], paths[0])
    counts_WRX = table.empty((len(windows), *first.shape), at)
    counts_WRX[0] = first
    for window in range(1, len(windows)):
        counts_WRX[window] = table.rows_of(windows[window], paths[window], like=first.shape)
    names = (name,) if len(windows) == 1 else tuple(f"window {window}" for window in range(len(windows)))
    # The key is SGLang's, which has a row per decoder layer; a bare table is what vLLM users write out.
    return RecordedCounts(
        counts_WRX, names, (0,) * len(names), numbering="decoder" if at != "$" else "unknown", facts=facts
    )


def _recorded_keys(table: JsonTable, root: dict[str, Any], name: str) -> RecordedCounts:
    """Read one step per iteration, all in one window; rows carry the layer from their key."""
    keys = {key: tuple(int(part) for part in key.split("_")) for key in root}
    iterations = sorted({iteration for iteration, _ in keys.values()})
    layers = sorted({layer for _, layer in keys.values()})
    if len(keys) != len(set(keys.values())):
        raise BadCountShape(f"{name} has two keys for the same iteration and layer, written differently.")
    key_of = {place: key for key, place in keys.items()}
    counts: npt.NDArray[np.int64] | None = None
    for step, iteration in enumerate(iterations):
        for row, layer in enumerate(layers):
            key = key_of.get((iteration, layer))
            if key is None:
                raise BadCountShape(f"{name} has no {iteration}_{layer}, though it has other layers of {iteration}.")
            values_X = table.row(root[key], f'$["{key}"]', width=None if counts is None else counts.shape[2])
            if counts is None:
                counts = table.empty((len(iterations), len(layers), values_X.size), "$")
            counts[step, row] = values_X
    if counts is None:
        raise BadCountShape(f"{name} holds no counts.")
    facts = {"form": "iteration_layer", "iterations": [iterations[0], iterations[-1]]}
    steps = len(iterations)
    return RecordedCounts(counts, (name,) * steps, (1,) * steps, labels_R=layers, engine="tensorrt-llm", facts=facts)


def _other_json(name: str, root: object) -> str:
    if not isinstance(root, dict):
        return f"{name} holds {shown(root)}; JSON counts are {{'logical_count': [layers][experts]}} or a table of rows."
    if "physical_to_logical_map" in root:
        return (
            f"{name} is a layout (physical_to_logical_map), not a recording; it goes to `moeplan evaluate` or `diff`."
        )
    if "layer_list" in root:
        return (
            f"{name} is an expert map of vllm-ascend (layer_list), not a recording: that engine keeps expert loads in "
            "memory and writes maps only; it goes to `moeplan evaluate` or `diff`."
        )
    keys = ", ".join(shown(key) for key in list(root)[:5]) or "no keys"
    return (
        f'{name} is JSON with {keys}; counts are expected under "logical_count" or as keys like "7_2" (iteration and '
        "layer)."
    )
