"""Predicted steps, and profiles fitted on this machine, without an engine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.dispatch import Dispatch
from placement.hardware import HardwareProfile
from placement.layout import Layout
from placement.model_shape import ExpertShape
from profiler.hardware import read_hardware
from tests.gpu.layouts import demand_of, domain_layout, tokens_of
from tests.gpu.step_prediction import (
    CalibrationPoint,
    StepLoad,
    StepShape,
    fit_profile,
    predict_steps,
    step_loads,
)
from tests.gpu.traffic import Routed

EXPERT = ExpertShape(hidden=2048, width=1408, weight_bytes=3 * 2048 * 1408 * 2)
SHAPE = StepShape(EXPERT, top_k=2, experts=4, gpus=2, tokens_per_gpu=3, dispatch=Dispatch.NEAREST_DYNAMIC)


def _base() -> HardwareProfile:
    return read_hardware("h200")


def _routed() -> Routed:
    """Two steps of three tokens on each of two GPUs, one layer; in the second step all need experts 0 and 2."""
    experts = [[0, 2], [0, 2], [0, 1], *[[0, 2]] * 3, [1, 3], [1, 3], [1, 0], *[[0, 2]] * 3]
    return Routed(np.array(experts, dtype=np.int32)[:, None, :], np.repeat([0, 1], 6))


def test_windows_are_the_steps_that_every_gpu_takes_in_order() -> None:
    demand = demand_of(_routed(), experts=4, gpus=2, tokens_per_step=3)
    assert demand.tokens_WLSE[:, 0].tolist() == [[[3, 1, 2, 0], [1, 3, 0, 2]], [[3, 0, 3, 0], [3, 0, 3, 0]]]
    assert tokens_of(_routed(), experts=4, tokens_per_step=3).window_T.tolist() == [0, 0, 0, 1, 1, 1] * 2
    whole = demand_of(_routed(), experts=4, gpus=2)
    assert whole.tokens_WLSE.tolist() == demand.tokens_WLSE.sum(axis=0, keepdims=True).tolist()


def test_loads_are_of_the_busiest_gpu_of_every_step() -> None:
    layout = Layout(np.array([[0, 2, 1, 3]]), gpus=2, experts=4)
    # First step: 6 rows each, one token leaves either GPU. Second step: GPU 0 computes all 12, GPU 1 sends 3.
    assert step_loads({"one": layout}, _routed(), SHAPE)["one"] == StepLoad(rows=9.0, copies=2.0)


def test_a_profile_fitted_on_exact_times_predicts_them() -> None:
    expert_s, sending_s = (lambda rows: 9e-5 + rows * 4e-8), (lambda copies: 3e-4 + copies * 5e-8)
    loads = [StepLoad(rows, copies) for rows, copies in ((65e3, 0.0), (70e3, 8e3), (90e3, 16e3), (66e3, 24e3))]
    points = [CalibrationPoint(load, expert_s(load.rows), sending_s(load.copies)) for load in loads]
    profile = fit_profile(points, SHAPE, _base(), name="here")
    assert profile.name == "here"
    for load in loads:
        found = profile.prefill.seconds(rows=load.rows, nvlink_copies=load.copies, rdma_copies=0.0, hidden=2048)
        assert float(found) == pytest.approx(sending_s(load.copies), rel=1e-6)
        assert float(profile.expert.seconds(load.rows, 16, expert=EXPERT)) == pytest.approx(
            expert_s(load.rows), rel=0.01
        )


def test_where_copies_cost_nothing_the_all_to_all_is_constant() -> None:
    points = [CalibrationPoint(StepLoad(65e3 + step, 1e4 * step), 1e-3, 1e-3 - 1e-4 * step) for step in range(5)]
    profile = fit_profile(points, SHAPE, _base(), name="here")
    seconds = profile.prefill.seconds(rows=0.0, nvlink_copies=[0.0, 1e5], rdma_copies=0.0, hidden=2048)
    assert seconds.tolist() == pytest.approx([8e-4, 8e-4], rel=1e-4)


def test_a_line_below_zero_goes_through_it() -> None:
    points = [CalibrationPoint(StepLoad(rows, 0.0), 1e-8 * (rows - 1e4), 1e-3) for rows in (5e4, 7e4, 9e4)]
    profile = fit_profile(points, SHAPE, _base(), name="here")
    assert profile.expert.fixed_s == pytest.approx(1e-6)
    assert float(profile.expert.seconds(7e4, 1, expert=EXPERT)) == pytest.approx(6e-4, rel=0.1)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.sampled_from([0, 2, 4]))
def test_without_an_all_to_all_only_experts_take_time(seed: int, kept: int) -> None:
    draw = np.random.default_rng(seed)
    experts = np.array([[draw.choice(8, 2, replace=False) for _ in range(2)] for _ in range(12)], dtype=np.int32)
    routed = Routed(experts, np.repeat([0, 1], 6))
    layout = domain_layout(kept, layers=2, experts=8, gpus=2, slots=8)
    far = StepShape(EXPERT, 2, 8, 2, 3, Dispatch.NEAREST_DYNAMIC)
    near = StepShape(EXPERT, 2, 8, 2, 3, Dispatch.EVEN)
    with_it, without = (predict_steps({"one": layout}, routed, shape, _base())["one"] for shape in (far, near))
    assert without.moe_ms == without.experts_ms
    assert with_it.experts_ms == pytest.approx(without.experts_ms)  # every expert has one slot
    assert with_it.moe_ms >= with_it.experts_ms + 2 * 1e3 * _base().prefill.fixed_s
    assert without.moe_from_counts_ms == pytest.approx(without.moe_ms, rel=0.25)  # active experts differ
