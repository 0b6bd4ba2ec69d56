"""Layout files to read in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROW = [0, 1, 2, 3, 0, 1]
"""Four experts in six slots."""


def sglang_file(folder: Path, rows: Any, **more: Any) -> Path:
    path = folder / "map.json"
    path.write_text(json.dumps({"physical_to_logical_map": rows, **more}), encoding="utf-8")
    return path


def ascend_file(folder: Path, layers: list[list[list[Any]]], **more: Any) -> Path:
    document = {
        "moe_layer_count": len(layers),
        "layer_list": [
            {
                "layer_id": layer,
                "device_count": len(devices),
                "device_list": [
                    {"device_id": device, "device_expert": experts} for device, experts in enumerate(devices)
                ],
            }
            for layer, devices in enumerate(layers)
        ],
        **more,
    }
    path = folder / "expert_map.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
