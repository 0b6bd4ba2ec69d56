"""The numbers of balance, on the cases that went wrong elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from api.pages.views.balance import balance_rows
from tests.case_files import case, case_json


def values(load_RG: object) -> dict[str, float]:
    return {row.name: row.value for row in balance_rows(np.asarray(load_RG, dtype=float))}


def test_balancedness_is_by_rank_and_not_by_layer() -> None:
    oracle = case("D01")["expect"]["oracle"]
    found = values(case_json("D01", "rank_tokens.json"))
    assert found["sglang_balancedness"] == pytest.approx(oracle["right"], abs=1e-4)
    assert found["balancedness"] == pytest.approx(oracle["right"], abs=1e-4)
    assert found["sglang_balancedness"] != pytest.approx(oracle["wrong_axis"], abs=1e-4)


def test_every_engines_number_stands_beside_its_definition() -> None:
    oracle = case("D03")["expect"]["oracle"]
    rows = balance_rows(np.asarray(case_json("D03", "rank_tokens.json"), dtype=float))
    by_whose = {row.whose: row for row in rows}
    assert by_whose["SGLang"].value == pytest.approx(oracle["sglang_mean_of_ratios"], abs=1e-4)
    assert by_whose["moeplan, vLLM"].value == pytest.approx(oracle["vllm_ratio_of_sums"], abs=1e-4)
    assert by_whose["TensorRT-LLM"].value == pytest.approx(oracle["trtllm_imbalance_ratio"], abs=1e-4)
    assert by_whose["vllm-ascend"].value == pytest.approx(oracle["ascend_peak_to_average_max"], abs=1e-4)
    assert len({row.definition for row in rows}) == len(rows)


def test_layers_without_traffic_are_in_no_average() -> None:
    busy = [[10, 30], [100, 100]]
    assert values([[0, 0], *busy, [0, 0]]) == values(busy)


def test_an_even_load_has_the_value_that_is_told_for_it() -> None:
    for row in balance_rows(np.full((3, 4), 7.0)):
        assert row.value == pytest.approx(float(row.even))


def test_without_any_traffic_there_are_no_figures() -> None:
    assert balance_rows(np.zeros((3, 4))) == ()
