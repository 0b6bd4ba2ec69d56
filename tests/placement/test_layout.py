"""Layouts: what is accepted, what is refused and where, hash and derived arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import BadMapShape, BadOption, ExpertIdRange, ExpertMissing, SlotsNotDivisible
from placement.layout import Layout, layout_from_hosts
from placement.topology import Topology
from tests.case_files import case, case_json
from tests.placement.instances import layouts


def _layout(rows: object, *, gpus: int = 2, experts: int = 4) -> Layout:
    return Layout(np.asarray(rows), gpus=gpus, experts=experts)


# --------------------------------------------------------------------------------------------------------- cases


def test_a_map_without_some_expert_is_refused_with_layer_and_expert():
    known = case("U01")
    rows = case_json("U01", "map.json")["physical_to_logical_map"]

    with pytest.raises(ExpertMissing) as refused:
        _layout(rows, experts=known["params"]["engine"]["num_experts"])

    assert refused.value.code == known["expect"]["error_code"]
    assert (
        f"layer {known['expect']['oracle']['layer']} has no slot for expert {known['expect']['oracle']['expert']}"
        in refused.value.detail
    )


def test_a_negative_id_is_refused_with_layer_and_slot():
    known = case("U02")
    rows = case_json("U02", "map.json")["physical_to_logical_map"]

    with pytest.raises(ExpertIdRange) as refused:
        _layout(rows, experts=known["params"]["engine"]["num_experts"])

    assert refused.value.code == known["expect"]["error_code"]
    assert (
        f"layer {known['expect']['oracle']['layer']}, slot {known['expect']['oracle']['slot']} names expert -1"
        in refused.value.detail
    )


@pytest.mark.parametrize("name", ["flat.json", "float.json"])
def test_a_flat_map_and_one_of_floats_are_refused(name):
    known = case("U07")

    with pytest.raises(BadMapShape) as refused:
        _layout(case_json("U07", name)["physical_to_logical_map"])

    assert refused.value.code == known["expect"]["error_code"]


# --------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("rows", [[[]], [[[0, 1], [2, 3]]], [[True, False]], [["a", "b"]]])
def test_other_shapes_and_types_are_refused(rows):
    with pytest.raises(BadMapShape):
        _layout(rows)


def test_an_id_beyond_the_last_expert_is_refused_even_beyond_32_bits():
    with pytest.raises(ExpertIdRange, match="layer 1, slot 2 names expert 4; ids run from 0 to 3"):
        _layout([[0, 1, 2, 3], [0, 1, 4, 3]])
    with pytest.raises(ExpertIdRange, match=str(2**32)):
        _layout([[0, 1, 2, 2**32]])


def test_the_first_missing_expert_of_all_layers_is_named():
    with pytest.raises(ExpertMissing, match=r"layer 1 has no slot for expert 2 \(2 missing in all\)"):
        _layout([[0, 1, 2, 3], [0, 1, 0, 1]])


def test_slots_that_do_not_divide_by_the_gpus_are_refused():
    with pytest.raises(SlotsNotDivisible, match="4 and 6"):
        _layout([[0, 1, 2, 3, 0]])


@pytest.mark.parametrize(("gpus", "experts"), [(0, 4), (2, 0)])
def test_at_least_one_gpu_and_expert_are_needed(gpus, experts):
    with pytest.raises(BadOption):
        _layout([[0, 1, 2, 3]], gpus=gpus, experts=experts)


def test_a_layout_cannot_be_changed():
    rows = np.array([[0, 1, 2, 3]])
    layout = _layout(rows)
    rows[0, 0] = 3

    assert layout.slot_to_expert_LP.tolist() == [[0, 1, 2, 3]]
    for array in (layout.slot_to_expert_LP, layout.replicas_LEG):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


# --------------------------------------------------------------------------------------------------- from GPUs' lists


def test_a_layout_is_built_from_the_experts_of_every_gpu():
    layout = layout_from_hosts([[[0, 1], [2, 3]], [[3, 2], [1, 0]]], experts=4)

    assert layout == _layout([[0, 1, 2, 3], [3, 2, 1, 0]])


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ([], "no layers"),
        ([[]], "no GPUs"),
        ([[[0, 1], [2, 3]], [[0, 1, 2, 3]]], "layer 1 lists 1 GPUs, layer 0 lists 2"),
        ([[[0, 1, 2], [3]]], "layer 0, GPU 1 has 1 experts"),
        ([[[], []]], "shape"),
    ],
)
def test_uneven_lists_are_refused(hosts, found):
    with pytest.raises(BadMapShape, match=found):
        layout_from_hosts(hosts, experts=4)


# ------------------------------------------------------------------------------------------------------- derived


def test_replicas_count_slots_by_expert_and_gpu():
    layout = _layout([[0, 0, 1, 0]], experts=2)

    assert layout.replicas_LEG.tolist() == [[[2, 1], [0, 1]]]
    assert layout.duplicated_slots() == 1


def test_equal_maps_have_equal_hashes_whatever_their_integer_type():
    a, b = Layout(np.array([[0, 1]], np.int64), 2, 2), Layout(np.array([[0, 1]], np.uint8), 2, 2)

    assert (a, a.hash, hash(a)) == (b, b.hash, hash(b))
    assert len(a.hash) == 64


def test_the_hash_tells_maps_apart_and_shapes_too():
    maps = [_layout([[0, 1, 2, 3]]), _layout([[1, 0, 2, 3]]), _layout([[0, 1, 2, 3]] * 2)]
    reshaped = Layout(np.array([[0, 1], [0, 1]]), gpus=2, experts=2), Layout(np.array([[0, 1, 0, 1]]), 2, 2)

    assert len({layout.hash for layout in maps}) == 3
    assert reshaped[0].hash != reshaped[1].hash


def test_the_same_map_on_other_gpus_is_another_layout():
    assert _layout([[0, 1, 2, 3]], gpus=2) != _layout([[0, 1, 2, 3]], gpus=4)
    assert _layout([[0, 1, 2, 3]]) != "a map"


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_replicas_add_up(data):
    topology = Topology(data.draw(st.integers(1, 6)))
    layout = data.draw(layouts(topology=topology, layers=2, experts=5))

    assert (layout.replicas_LEG.sum(axis=1) == layout.slots_per_gpu).all()
    for layer, row in enumerate(layout.slot_to_expert_LP):
        np.testing.assert_array_equal(layout.replicas_LEG[layer].sum(axis=1), np.bincount(row, minlength=5))
    again = layout_from_hosts(
        layout.slot_to_expert_LP.reshape(2, topology.gpus, layout.slots_per_gpu).tolist(), experts=5
    )
    assert again == layout


@pytest.mark.parametrize("outside", [-(2**32), 2**32, -(2**63)])
def test_ids_are_judged_before_they_are_made_narrower(outside: int) -> None:
    """Such an id is another expert's once it has 32 bits."""
    slots_LP = np.array([[0, 1, 2, 3]])
    assert Layout.of_any_width(slots_LP, gpus=2, experts=4) == Layout(slots_LP.astype(np.int32), gpus=2, experts=4)
    slots_LP[0, 2] += outside
    with pytest.raises(ExpertIdRange):
        Layout.of_any_width(slots_LP, gpus=2, experts=4)
