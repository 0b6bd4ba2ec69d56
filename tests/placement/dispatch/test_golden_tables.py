"""The dispatch model against tables that SGLang's own functions made (``make_golden_tables.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from placement.dispatch import SPREAD, Dispatch, DispatchTable, dispatch_table
from placement.layout import Layout
from placement.topology import Topology

GOLDEN = json.loads((Path(__file__).parent / "golden_tables.json").read_text())


@pytest.fixture(params=GOLDEN["cases"], ids=lambda case: case["name"])
def golden(request):
    return request.param


def _table(golden: dict, dispatch: Dispatch) -> DispatchTable:
    layout = Layout(np.array(golden["map"]), gpus=golden["gpus"], experts=golden["experts"])
    return dispatch_table(layout, Topology(golden["gpus"], golden["nodes"]), dispatch=dispatch)


def _every_slot(golden: dict, layer: int, expert: int) -> list[int]:
    return [slot for slot, held in enumerate(golden["map"][layer]) if held == expert]


def test_tables_come_from_both_engine_versions_and_cover_one_two_and_four_nodes():
    assert GOLDEN["sglang"] == ["0.5.16", "0.5.23"]
    assert {case["nodes"] for case in GOLDEN["cases"]} == {1, 2, 4}
    assert any(Layout(np.array(c["map"]), c["gpus"], c["experts"]).duplicated_slots() for c in GOLDEN["cases"])


def test_static_slots_are_those_of_every_ranks_own_table(golden):
    table = _table(golden, Dispatch.NEAREST_STATIC)

    np.testing.assert_array_equal(table.slot_LSE, np.array(golden["static"]).transpose(1, 0, 2))


def test_dynamic_slots_are_the_candidates_of_every_rank(golden):
    table = _table(golden, Dispatch.NEAREST_DYNAMIC)

    for rank, layers in enumerate(golden["candidates"]):
        for layer, candidates_of_expert in enumerate(layers):
            for expert, candidates in enumerate(candidates_of_expert):
                slot = int(table.slot_LSE[layer, rank, expert])
                found = _every_slot(golden, layer, expert) if slot == SPREAD else [slot]
                assert found == candidates, (rank, layer, expert)


@pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.NEAREST_STATIC])
def test_shares_are_even_over_the_slots_that_a_rank_draws_among(golden, dispatch):
    table = _table(golden, dispatch)
    slots_per_gpu = len(golden["map"][0]) // golden["gpus"]

    for layer in range(len(golden["map"])):
        expected_SEG = np.zeros((golden["gpus"], golden["experts"], golden["gpus"]))
        for rank in range(golden["gpus"]):
            for expert in range(golden["experts"]):
                candidates = (
                    golden["candidates"][rank][layer][expert]
                    if dispatch is Dispatch.NEAREST_DYNAMIC
                    else [golden["static"][rank][layer][expert]]
                )
                for slot in candidates:
                    expected_SEG[rank, expert, slot // slots_per_gpu] += 1 / len(candidates)
        np.testing.assert_allclose(table.share_SEG(layer), expected_SEG, atol=1e-12)


def test_even_goes_over_all_slots_as_the_newer_engine_does_without_an_all_to_all(golden):
    assert golden["without_all_to_all"]["0.5.23"] == "all slots"
    table = _table(golden, Dispatch.EVEN)
    slots_per_gpu = len(golden["map"][0]) // golden["gpus"]

    for layer in range(len(golden["map"])):
        for expert in range(golden["experts"]):
            slots = _every_slot(golden, layer, expert)
            expected_G = np.bincount(np.array(slots) // slots_per_gpu, minlength=golden["gpus"]) / len(slots)
            np.testing.assert_allclose(table.share_SEG(layer)[:, expert], np.tile(expected_G, (golden["gpus"], 1)))
