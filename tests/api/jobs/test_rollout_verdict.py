"""What measuring comes to: which figure decides, how much worse it may be, what is warned of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.jobs.rollout_measure import unusable
from api.jobs.rollout_verdict import (
    KEPT,
    LEAST_PAIRS_PER_GPU,
    WORSE_THAN_BEFORE,
    figures,
    judge,
    judged_metric,
    not_measured,
    warnings_of,
    worse_by,
)
from placement.problem import LocalScope, Objective
from profiler.engine.capture import CaptureResult
from profiler.engine.contract import Placement
from profiler.engine.contract_demand import DemandWindow, PhaseCounts
from profiler.trace import TraceHeader
from tests.profiler.engine.messages import placement
from tests.sample_plans import make_plan, small_sample

LOCAL = {"local_gpu": 0.5, "local_node": 0.7, "imbalance": 1.2}
NO_HOME = {"local_gpu": None, "local_node": None, "imbalance": 1.2}


@pytest.mark.parametrize(
    ("objective", "scope", "measured", "metric"),
    [
        (Objective.LOCALITY, LocalScope.GPU, LOCAL, "local_gpu"),
        (Objective.LOCALITY, LocalScope.NODE, LOCAL, "local_node"),
        (Objective.LOCALITY, LocalScope.GPU, NO_HOME, "imbalance"),
        (Objective.BALANCE, LocalScope.GPU, LOCAL, "imbalance"),
        (Objective.TRAFFIC, LocalScope.GPU, LOCAL, "imbalance"),
        (Objective.STEP_TIME, LocalScope.GPU, LOCAL, "imbalance"),
    ],
)
def test_the_figure_that_the_plan_was_made_for_decides(
    objective: Objective, scope: LocalScope, measured: dict[str, Any], metric: str
) -> None:
    assert judged_metric(objective, scope, measured) == metric


@pytest.mark.parametrize(
    ("metric", "measured", "before", "margin", "code"),
    [
        ("imbalance", 1.26, 1.20, 0.06, KEPT),
        ("imbalance", 1.28, 1.20, 0.06, WORSE_THAN_BEFORE),
        ("imbalance", 1.00, 1.20, 0.0, KEPT),
        ("local_gpu", 0.57, 0.60, 0.06, KEPT),
        ("local_gpu", 0.56, 0.60, 0.06, WORSE_THAN_BEFORE),
        ("local_gpu", 0.90, 0.60, 0.0, KEPT),
        ("local_gpu", 0.0, 0.0, 0.0, KEPT),
    ],
)
def test_worse_by_more_than_the_margin_is_taken_back(
    metric: str, measured: float, before: float, margin: float, code: str
) -> None:
    verdict = judge(metric, measured={metric: measured}, before={metric: before}, predicted=None, margin=margin)
    assert verdict.code == code
    assert f"{measured:.4f}" in verdict.sentence
    assert f"{before:.4f}" in verdict.sentence
    assert verdict.numbers["predicted"] is None


@given(
    st.sampled_from(["imbalance", "local_gpu"]),
    st.floats(0.01, 1.0),
    st.floats(0.01, 1.0),
)
def test_worse_and_better_are_told_apart_for_both_kinds_of_figure(metric: str, one: float, other: float) -> None:
    """An imbalance is better when lower, a share when higher; equal is neither."""
    value, reference = (1 + one, 1 + other) if metric == "imbalance" else (one, other)
    change = worse_by(metric, value, reference)
    is_worse = value > reference if metric == "imbalance" else value < reference
    assert (change > 0) == is_worse or abs(change) < 1e-12
    assert worse_by(metric, reference, reference) == 0


def test_an_applied_layout_warns_when_it_is_not_measured_or_not_as_predicted() -> None:
    as_said = judge("imbalance", measured={"imbalance": 1.1}, before={"imbalance": 1.5}, predicted={"imbalance": 1.08},
                    margin=0.05)  # fmt: skip
    short = judge("imbalance", measured={"imbalance": 1.3}, before={"imbalance": 1.5}, predicted={"imbalance": 1.08},
                  margin=0.05)  # fmt: skip
    assert warnings_of(as_said.to_json()) == []
    assert [warning["code"] for warning in warnings_of(short.to_json())] == ["BELOW_PREDICTION"]
    (warning,) = warnings_of(not_measured("NO_TRAFFIC", "nothing was served.").to_json())
    assert warning == {"code": "NO_TRAFFIC", "detail": "Not measured: nothing was served. The layout stays."}


def test_the_figures_kept_are_those_of_the_ruler() -> None:
    metrics = make_plan(small_sample()).metrics
    kept = figures(metrics)
    assert kept["imbalance"] == metrics.imbalance
    assert kept["balancedness"] == pytest.approx(1 / metrics.imbalance)
    assert kept["sglang_balancedness"] == metrics.sglang_balancedness
    assert kept["local_gpu"] == metrics.local_gpu
    assert kept["worst_window_imbalance"] == metrics.worst_window.imbalance


# ------------------------------------------------------------------ what can be judged by


def recorded(seen: Placement, *, pairs_per_gpu: int, generations: tuple[int, int] = (0, 0)) -> CaptureResult:
    counts_LSE = np.zeros((seen.layers, seen.ep_size, seen.experts), dtype=np.int64)
    counts_LSE[list(seen.moe_layers), :, 0] = pairs_per_gpu
    phase = PhaseCounts("decode", 1, 8, counts_LSE)
    window = DemandWindow(0, 0, 1, 1.0, generations[0], generations[1], (phase,))
    header = TraceHeader(
        kind="counts", layers=seen.layers, experts=seen.experts, top_k=None, source_ranks=seen.ep_size,
        engine="sglang", engine_version="0", model="m",
    )  # fmt: skip
    return CaptureResult("engine", header, (window,), (), simulated=False)


@pytest.mark.parametrize(
    ("pairs", "generations", "code"),
    [
        (LEAST_PAIRS_PER_GPU, (0, 0), None),
        (LEAST_PAIRS_PER_GPU - 1, (0, 0), "TOO_LITTLE_TRAFFIC"),
        (LEAST_PAIRS_PER_GPU, (0, 1), "LAYOUT_CHANGED"),
    ],
)
def test_too_little_traffic_or_traffic_under_two_layouts_is_not_judged_by(
    pairs: int, generations: tuple[int, int], code: str | None
) -> None:
    seen = placement()
    generations = (seen.generation + generations[0], seen.generation + generations[1])
    verdict = unusable(recorded(seen, pairs_per_gpu=pairs, generations=generations), seen)
    assert (None if verdict is None else verdict.code) == code
