"""vllm-ascend's expert map: the reported failures as whole kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import BadMapShape, DuplicateOnDevice, LayoutMismatch
from profiler.formats import read_layout
from tests.case_files import case, case_folder
from tests.profiler.formats.map_files import ROW, ascend_file


def test_u14_expert_twice_on_a_device_is_refused() -> None:
    with pytest.raises(DuplicateOnDevice, match=r"layer 0, device 0 holds expert 0 twice \(positions 0 and 1\)"):
        read_layout(case_folder("U14") / "expert_map.json", gpus=2, experts=case("U14")["params"]["num_experts"])
    assert DuplicateOnDevice.code == case("U14")["expect"]["error_code"]


@pytest.mark.parametrize(("layer", "device"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_duplicate_anywhere_is_named(tmp_path: Path, layer: int, device: int) -> None:
    layers = [[[0, 1, 2], [3, 0, 1]] for _ in range(2)]
    layers[layer][device][2] = layers[layer][device][0]
    with pytest.raises(DuplicateOnDevice, match=f"layer {layer}, device {device} "):
        read_layout(ascend_file(tmp_path, layers), gpus=2, experts=4)


def test_the_same_expert_on_two_devices_is_kept(tmp_path: Path) -> None:
    layout, notices = read_layout(ascend_file(tmp_path, [[[0, 1, 2], [3, 0, 1]]]), gpus=None, experts=4)
    assert (layout.gpus, layout.slot_to_expert_LP.tolist(), notices) == (2, [ROW], [])


@pytest.mark.parametrize("file", ["layers_swapped.json", "devices_swapped.json"])
def test_u16_ids_count_and_not_the_order_in_the_file(file: str) -> None:
    oracle = case("U16")["expect"]["oracle"]["layer0_device0"]
    layout, notices = read_layout(case_folder("U16") / file, gpus=2, experts=case("U16")["params"]["num_experts"])
    assert layout.slot_to_expert_LP[0, : layout.slots_per_gpu].tolist() == oracle
    assert [notice.code for notice in notices] == ["IDS_NOT_IN_ORDER"]


@settings(deadline=None)
@given(st.permutations(range(3)), st.permutations(range(4)))
def test_any_order_gives_the_same_layout(
    tmp_path_factory: pytest.TempPathFactory, layer_order: list[int], device_order: list[int]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    layers = [[[(layer + device) % 4, (layer + device + 1) % 4] for device in range(4)] for layer in range(3)]
    path = ascend_file(folder, layers)
    in_order, _ = read_layout(path, gpus=4, experts=4)
    document = json.loads(path.read_text())
    document["layer_list"] = [document["layer_list"][layer] for layer in layer_order]
    for layer in document["layer_list"]:
        layer["device_list"] = [layer["device_list"][device] for device in device_order]
    path.write_text(json.dumps(document))
    layout, notices = read_layout(path, gpus=4, experts=4)
    assert layout == in_order
    assert bool(notices) == (layer_order != [0, 1, 2] or device_order != [0, 1, 2, 3])


BROKEN_MAPS: dict[str, tuple[Any, str]] = {
    "a layer twice": (
        lambda document: document["layer_list"][1].update(layer_id=0),
        r"layer_list has the layer_ids \[0, 0\]; they must be 0 to 1",
    ),
    "a device that is not there": (
        lambda document: document["layer_list"][1]["device_list"][0].update(device_id=7),
        "layer 1, device_list has the device_ids",
    ),
    "no device id": (
        lambda document: document["layer_list"][0]["device_list"][0].pop("device_id"),
        "layer 0, device_list has the device_ids",
    ),
    "a device id that is true": (
        lambda document: document["layer_list"][0]["device_list"][1].update(device_id=True),
        "device_ids",
    ),
    "no experts": (
        lambda document: document["layer_list"][0]["device_list"][0].pop("device_expert"),
        "layer 0, device 0 has no list device_expert",
    ),
    "an id that is none": (
        lambda document: document["layer_list"][0]["device_list"][0].update(device_expert=[0, "1", 2]),
        'layer 0, device 0, position 1 holds "1"',
    ),
    "another number of layers": (lambda document: document.update(moe_layer_count=3), "moe_layer_count is 3, but 2"),
    "another number of devices": (
        lambda document: document["layer_list"][1].update(device_count=1),
        "layer 1, device_count is 1, but 2",
    ),
    "a device fewer in one layer": (
        lambda document: document["layer_list"][1].update(
            device_list=document["layer_list"][1]["device_list"][:1], device_count=1
        ),
        "layer 1 has 1 devices, layer 0 has 2",
    ),
    "an expert fewer on one device": (
        lambda document: document["layer_list"][1]["device_list"][1].update(device_expert=[3, 0]),
        "layer 1, device 1 has 2 experts, layer 0, device 0 has 3",
    ),
    "no layers": (lambda document: document.update(layer_list=[]), "layer_list must be a list of objects"),
    "layers that are no objects": (lambda document: document.update(layer_list=[1, 2]), "list of objects"),
}


@pytest.mark.parametrize("name", BROKEN_MAPS)
def test_a_broken_expert_map_is_refused(tmp_path: Path, name: str) -> None:
    change, message = BROKEN_MAPS[name]
    path = ascend_file(tmp_path, [[[0, 1, 2], [3, 0, 1]], [[0, 1, 2], [3, 0, 1]]])
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(BadMapShape, match=message):
        read_layout(path, gpus=2, experts=4)


def test_an_expert_map_for_other_devices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutMismatch, match="for 2 devices; expected 3 GPUs"):
        read_layout(ascend_file(tmp_path, [[[0, 1, 2], [3, 0, 1]]]), gpus=3, experts=4)
