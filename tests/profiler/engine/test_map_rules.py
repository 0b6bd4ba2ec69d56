"""Rules for maps: the same as those of placement.layout, written a second time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import CodedError
from placement.layout import Layout
from profiler.engine.json_fields import ContractViolation
from profiler.engine.map_rules import changed_layers, check_map, chunks_of_layers, layout_hash, slot_changes
from profiler.json_file import read_json
from tests.case_files import case, case_folder

tables = st.integers(1, 3).flatmap(
    lambda layers: st.lists(st.lists(st.integers(-1, 4), min_size=6, max_size=6), min_size=layers, max_size=layers)
)


def code_of_check(map_LP: np.ndarray, *, experts: int, layers: int, slots: int) -> str | None:
    try:
        check_map(map_LP, layers=layers, slots=slots, experts=experts)
    except ContractViolation as violation:
        return violation.code
    return None


def code_of_layout(map_LP: np.ndarray, experts: int) -> str | None:
    try:
        Layout(map_LP, gpus=2, experts=experts)
    except CodedError as error:
        return error.code
    return None


@settings(max_examples=200, deadline=None)
@given(tables, st.integers(1, 4))
def test_a_map_is_refused_with_the_same_code_as_a_layout(rows, experts):
    map_LP = np.array(rows, dtype=np.int32)
    assert code_of_check(map_LP, experts=experts, layers=len(rows), slots=6) == code_of_layout(map_LP, experts)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.permutations([0, 1, 2, 3, 0, 2]), min_size=1, max_size=4))
def test_the_hash_is_that_of_the_layout(rows):
    map_LP = np.array(rows, dtype=np.int32)
    assert layout_hash(map_LP) == Layout(map_LP, gpus=2, experts=4).hash
    assert layout_hash(map_LP.astype(np.int64)) == layout_hash(map_LP)


def test_the_hash_does_not_change():
    assert layout_hash(np.array([[0, 1], [1, 0]])) == "031aa1d39c625804b970433b303023173384bbccd35a963ca4dcb728835dbdca"


@pytest.mark.parametrize(
    ("layers", "slots", "code"), [(2, 4, "LAYOUT_MISMATCH"), (1, 6, "SLOT_COUNT_MISMATCH"), (1, 4, None)]
)
def test_the_engines_own_size_decides(layers, slots, code):
    map_LP = np.array([[0, 1, 2, 0]], dtype=np.int32)
    assert code_of_check(map_LP, experts=3, layers=layers, slots=slots) == code


@pytest.mark.parametrize("number", ["U01", "U02", "U04"])
def test_maps_from_public_reports_are_refused_by_the_engine_side_too(number):
    engine = case(number)["params"]["engine"]
    map_LP = np.array(read_json(case_folder(number) / "map.json")["physical_to_logical_map"], dtype=np.int32)
    with pytest.raises(ContractViolation) as caught:
        check_map(
            map_LP,
            layers=engine["num_layers"],
            slots=engine["num_experts"] + engine["num_redundant"],
            experts=engine["num_experts"],
        )
    assert caught.value.code == case(number)["expect"]["error_code"]


def test_a_copy_inside_a_gpu_is_a_change_but_no_move():
    old = np.array([[0, 1, 2, 3], [0, 1, 2, 3]], dtype=np.int32)
    new = np.array([[1, 0, 2, 3], [0, 2, 1, 3]], dtype=np.int32)
    within = slot_changes(old, new, layers=[0], gpus=2)
    across = slot_changes(old, new, layers=[1], gpus=2)
    assert (within.changed_slots, within.moved_slots) == (2, 0)
    assert (across.changed_slots, across.moved_slots) == (2, 2)
    assert slot_changes(old, old, layers=[0, 1], gpus=2).changed_slots == 0


def test_changed_layers_and_their_chunks():
    old = np.zeros((5, 2), dtype=np.int32)
    new = old.copy()
    new[[1, 3, 4]] = 1
    assert changed_layers(old, new, among=range(5)) == (1, 3, 4)
    assert changed_layers(old, new, among=[4, 0]) == (4,)
    assert chunks_of_layers((1, 3, 4), layers_per_chunk=2) == ((1, 3), (4,))
    assert chunks_of_layers((1, 3, 4), layers_per_chunk=None) == ((1, 3, 4),)
    assert chunks_of_layers((), layers_per_chunk=None) == ()
