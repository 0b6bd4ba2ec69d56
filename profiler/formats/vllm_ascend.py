"""vllm-ascend's expert map: per MoE layer the experts of every device.

The file is what ``eplb_config.expert_map_path`` (in ``additional_config``) takes and ``expert_map_record_path`` writes.
The engine's loader goes by position (``eplb/core/eplb_utils.py``) although layers and devices carry ids; here the ids
count. Its table of slots has room for one slot per expert and device, so an expert twice on a device is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from placement.errors import BadMapShape, DuplicateOnDevice, LayoutMismatch
from placement.layout import Layout
from placement.model_shape import ModelShape
from placement.notice import Notice
from profiler.formats.expert_ids import expert_id
from profiler.formats.moe_rows import moe_rows

LAYERS_KEY = "layer_list"
FILE_SUFFIX = ".json"


def parse_map(document: Mapping[str, Any], *, gpus: int | None) -> tuple[npt.NDArray[np.int32], int, list[Notice]]:
    """Read the map, int32 [L, P], and the number of devices from a parsed file.

    Raises
    ------
    BadMapShape
        A key is missing, ids are not 0..n-1, or devices have different numbers of experts.
    DuplicateOnDevice
        Naming layer, device and expert.
    LayoutMismatch
        The file is for another number of devices than ``gpus``.
    """
    layers, layers_in_order = _by_id(document.get(LAYERS_KEY), id_key="layer_id", where=LAYERS_KEY)
    _check_count(document.get("moe_layer_count"), len(layers), where="moe_layer_count")
    table, in_order = [], layers_in_order
    for layer, entry in enumerate(layers):
        where = f"layer {layer}"
        devices, devices_in_order = _by_id(entry.get("device_list"), id_key="device_id", where=f"{where}, device_list")
        _check_count(entry.get("device_count"), len(devices), where=f"{where}, device_count")
        table.append([_experts(device, where=f"{where}, device {index}") for index, device in enumerate(devices)])
        in_order = in_order and devices_in_order
    _check_even(table)
    if gpus is not None and gpus != len(table[0]):
        raise LayoutMismatch(f"the layout is for {len(table[0])} devices; expected {gpus} GPUs.")
    notices = []
    if not in_order:
        detail = "layers or devices are not listed in the order of their ids: the ids were followed, not the order."
        notices.append(Notice("IDS_NOT_IN_ORDER", detail))
    slots_LP = np.asarray(table, dtype=np.int32).reshape(len(table), -1)
    return slots_LP, len(table[0]), notices


def render_map(layout: Layout, model: ModelShape | None) -> bytes:
    """Return the file's bytes, layers and devices in the order of their ids: the engine reads by position.

    Raises
    ------
    DuplicateOnDevice
        A device holds an expert twice, which the engine's table of slots cannot say.
    """
    rows = moe_rows(layout, model, format="vllm-ascend")
    per_device_RGP = rows.slots_RP.reshape(len(rows.slots_RP), layout.gpus, layout.slots_per_gpu)
    layers = []
    for layer, (devices, decoder_layer) in enumerate(zip(per_device_RGP.tolist(), rows.layer_of_row, strict=True)):
        for device, experts in enumerate(devices):
            if len(set(experts)) < len(experts):
                twice = next(expert for expert in experts if experts.count(expert) > 1)
                raise DuplicateOnDevice(
                    f"decoder layer {decoder_layer}: device {device} holds expert {twice} twice; vllm-ascend has one "
                    "slot for an expert and device: plan without duplicates."
                )
        device_list = [{"device_id": device, "device_expert": experts} for device, experts in enumerate(devices)]
        layers.append(json.dumps({"layer_id": layer, "device_count": layout.gpus, "device_list": device_list}))
    listed = ",\n".join(layers)
    return f'{{"moe_layer_count": {len(layers)}, "{LAYERS_KEY}": [\n{listed}\n]}}\n'.encode()


def _by_id(entries: Any, *, id_key: str, where: str) -> tuple[list[Mapping[str, Any]], bool]:
    """Sort entries by their id and say whether they already were."""
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise BadMapShape(f"{where} must be a list of objects with {id_key}.")
    ids = [entry.get(id_key) for entry in entries]
    if any(isinstance(each, bool) or not isinstance(each, int) for each in ids) or sorted(ids) != list(range(len(ids))):
        raise BadMapShape(f"{where} has the {id_key}s {_shortened(ids)}; they must be 0 to {len(ids) - 1}, each once.")
    return sorted(entries, key=lambda entry: int(entry[id_key])), ids == sorted(ids)


def _experts(device: Mapping[str, Any], *, where: str) -> list[int]:
    entries = device.get("device_expert")
    if not isinstance(entries, list) or not entries:
        raise BadMapShape(f"{where} has no list device_expert.")
    experts = [expert_id(entry, where=f"{where}, position {slot}") for slot, entry in enumerate(entries)]
    for slot, expert in enumerate(experts):
        if expert in experts[:slot]:
            raise DuplicateOnDevice(
                f"{where} holds expert {expert} twice (positions {experts.index(expert)} and {slot}); the engine's "
                "table then sends other experts to a wrong slot."
            )
    return experts


def _check_count(count: Any, found: int, *, where: str) -> None:
    if count is not None and (isinstance(count, bool) or count != found):
        raise BadMapShape(f"{where} is {count!r}, but {found} are listed.")


def _check_even(table: list[list[list[int]]]) -> None:
    devices, width = len(table[0]), len(table[0][0])
    for layer, row in enumerate(table):
        if len(row) != devices:
            raise BadMapShape(f"layer {layer} has {len(row)} devices, layer 0 has {devices}; all need the same.")
        for device, experts in enumerate(row):
            if len(experts) != width:
                raise BadMapShape(
                    f"layer {layer}, device {device} has {len(experts)} experts, layer 0, device 0 has {width}; all "
                    "need the same."
                )


def _shortened(ids: list[Any]) -> str:
    return str(ids) if len(ids) <= 8 else f"[{', '.join(map(str, ids[:8]))}, ...]"
