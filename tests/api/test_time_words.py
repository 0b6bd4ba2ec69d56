from __future__ import annotations

from dataclasses import replace

import pytest

from api.time_words import microseconds, time_sentences
from placement.plan import Plan
from placement.step_time import MoeLayerTime
from tests.sample_plans import make_plan, small_sample


def time(layer_us: float, *, all_to_all: bool = True) -> MoeLayerTime:
    expert_s = layer_us * 0.75e-6 if all_to_all else layer_us * 1e-6
    return MoeLayerTime(
        moe_layer_s=layer_us * 1e-6,
        expert_s=expert_s,
        all_to_all_s=layer_us * 0.25e-6 if all_to_all else None,
        worst_window_s=layer_us * 1e-6,
        hardware="h200",
        phase="prefill",
        tokens_per_gpu=8192,
        basis="counts",
    )


def plan(ours_us: float, eplb_us: float, *, target: float, all_to_all: bool = True) -> Plan:
    made = make_plan(small_sample())
    baselines = {
        name: replace(row, moe_layer=time(eplb_us if name == "eplb" else 2 * eplb_us, all_to_all=all_to_all))
        for name, row in made.baselines.items()
    }
    return replace(
        made,
        metrics=replace(made.metrics, moe_layer=time(ours_us, all_to_all=all_to_all)),
        baselines=baselines,
        options=replace(made.options, local_target=target),
    )


REACHED, MISSED = 0.01, 0.99


def test_without_hardware_nothing_is_said() -> None:
    assert time_sentences(make_plan(small_sample())) == ()


def test_a_target_that_costs_time_does_not_pay() -> None:
    said = time_sentences(plan(100, 80, target=REACHED))[1]
    assert said == "eplb is predicted to take 20.0% less: the target of 1% does not pay here"


def test_a_target_that_saves_time_pays() -> None:
    said = time_sentences(plan(80, 100, target=REACHED))[1]
    assert said.endswith("20.0% less than eplb: the target of 1% pays")


@pytest.mark.parametrize(("ours_us", "eplb_us"), [(100, 80), (80, 100)])
def test_a_missed_target_neither_pays_nor_fails_to(ours_us: float, eplb_us: float) -> None:
    assert "pay" not in time_sentences(plan(ours_us, eplb_us, target=MISSED))[1]


def test_equal_times_are_called_equal() -> None:
    said = time_sentences(plan(100, 100.1, target=REACHED))[1]
    assert said == "that is the least of the layouts compared; eplb takes as long"


def test_without_all_to_all_locality_has_no_effect() -> None:
    said = time_sentences(plan(100, 100, target=REACHED, all_to_all=False))
    assert "all-to-all 0" not in said[0]
    assert said[-1].startswith("without an all-to-all backend locality has no effect on time")


def test_microseconds() -> None:
    assert (microseconds(1.2345e-3), microseconds(None)) == ("1234.5", "-")
