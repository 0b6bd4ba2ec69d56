"""The H200 profile beside the times that were measured, also with what it is judged on left out of the fit."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from profiler.hardware import read_hardware
from profiler.hardware.fitting import fit_expert_times
from tests.bench.step_time import expert_error
from tests.bench.support.measured_on_h200 import EXPERT_SAMPLES, LAYOUTS, MIXTRAL, V2_LITE, V3
from tests.bench.support.step_model import fit_step_model, shipped_step_model

ROOFLINE = Path(__file__).parents[4] / "shared" / "data" / "h200-roofline.md"


def test_expert_times_are_near_what_was_measured() -> None:
    errors = [abs(expert_error(read_hardware("h200").expert, each)) for each in EXPERT_SAMPLES]
    assert median(errors) <= 0.10
    assert max(errors) <= 0.30


@pytest.mark.parametrize("left_out", [V2_LITE, V3, MIXTRAL], ids=["v2-lite", "v3", "mixtral"])
def test_a_shape_that_was_not_fitted_is_predicted_as_well(left_out: object) -> None:
    fitted = fit_expert_times([each for each in EXPERT_SAMPLES if each.expert != left_out])
    errors = [abs(expert_error(fitted, each)) for each in EXPERT_SAMPLES if each.expert == left_out]
    assert median(errors) <= 0.10
    assert max(errors) <= 0.30


def test_layouts_come_out_in_the_measured_order_and_within_a_tenth() -> None:
    model = shipped_step_model()
    assert sorted(LAYOUTS, key=model.step_s) == sorted(LAYOUTS, key=lambda each: each.step_s)
    for layout in LAYOUTS:
        assert model.step_s(layout) == pytest.approx(layout.step_s, rel=0.10)
        if layout.all_to_all_s is not None:
            assert model.all_to_all_s(layout) == pytest.approx(layout.all_to_all_s, rel=0.10)


@pytest.mark.parametrize("index", range(len(LAYOUTS)))
def test_a_layout_that_was_not_fitted_is_predicted_within_a_tenth(index: int) -> None:
    layout = LAYOUTS[index]
    model = fit_step_model([each for each in LAYOUTS if each is not layout])
    assert model.step_s(layout) == pytest.approx(layout.step_s, rel=0.10)


def test_the_shipped_figures_are_those_of_the_fit() -> None:
    shipped, fitted = read_hardware("h200"), fit_step_model(LAYOUTS).profile
    experts = fit_expert_times(EXPERT_SAMPLES)
    assert shipped.expert.flops_per_s["bf16"] == pytest.approx(experts.flops_per_s["bf16"], rel=0.01)
    assert shipped.expert.weight_bytes_per_s == pytest.approx(experts.weight_bytes_per_s, rel=0.01)
    assert shipped.expert.fixed_s == pytest.approx(experts.fixed_s, rel=0.01)
    assert shipped.prefill.nvlink_bytes_per_s == pytest.approx(fitted.prefill.nvlink_bytes_per_s, rel=0.01)
    assert shipped.prefill.handled_bytes_per_s == pytest.approx(fitted.prefill.handled_bytes_per_s, rel=0.01)


@pytest.mark.skipif(not ROOFLINE.is_file(), reason="the recordings' folder with h200-roofline.md is not there")
def test_the_embedded_times_are_those_on_record() -> None:
    rows = re.findall(r"^\|.*?(\b(?:384|3072|24576|49152) \|[\d |-]+)\|$", ROOFLINE.read_text(), flags=re.MULTILINE)
    assert len(rows) == 12
    microseconds = sorted(int(each) for row in rows for each in re.findall(r"\d+", row)[1:])
    assert microseconds == sorted(round(each.seconds * 1e6) for each in EXPERT_SAMPLES)
