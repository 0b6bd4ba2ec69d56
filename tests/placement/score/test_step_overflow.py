"""Overflow of single engine steps: by hand, against the ruler of windows, and bounded in work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch, dispatch_table
from placement.layout import layout_from_hosts
from placement.score import score, score_tokens, step_overflow
from placement.score.step_overflow import MOST_FLOWS
from placement.step_counts import StepCounts
from placement.tokens import PHASE_NUMBERS, Tokens
from placement.topology import Topology
from tests.placement.instances import Instance, instances

DECODE, PREFILL = PHASE_NUMBERS["decode"], PHASE_NUMBERS["prefill"]


def counts(tokens_ZLSE: np.ndarray, phase_Z: list[int]) -> StepCounts:
    steps = len(tokens_ZLSE)
    return StepCounts(
        np.asarray(tokens_ZLSE, dtype=np.uint32),
        np.zeros(steps, dtype=np.int32),
        np.array(phase_Z, dtype=np.uint8),
        steps,
        "uniform",
    )


def test_steps_that_are_even_together_overflow_one_by_one() -> None:
    """Two experts on two GPUs: added up the load is even, each step alone is all on one GPU."""
    layout = layout_from_hosts([[[0], [1]]], experts=2)
    table = dispatch_table(layout, Topology(2), dispatch=Dispatch.EVEN)
    (decode,) = step_overflow(counts(np.array([[[[8, 0]]], [[[0, 8]]]]), [DECODE] * 2), table, capacity_factor=1.25)
    assert (decode.phase, decode.steps) == ("decode", 2)
    assert decode.overflow_share == pytest.approx((8 - 1.25 * 4) / 8)
    assert decode.rerouted == 0
    assert decode.dropped == pytest.approx(3 / 8)


def test_overflow_goes_to_other_replicas_before_anything_is_dropped() -> None:
    """GPU 0 has 30 of expert 0 and 40 of expert 1, the cap is 62.5: GPU 1 takes the 7.5 above."""
    layout = layout_from_hosts([[[0, 1], [0, 2]]], experts=3)
    table = dispatch_table(layout, Topology(2), dispatch=Dispatch.EVEN)
    (step,) = step_overflow(counts(np.array([[[[60, 40, 0]]]]), [PREFILL]), table, capacity_factor=1.25)
    assert step.overflow_share == pytest.approx(7.5 / 100)
    assert step.dropped == pytest.approx(0, abs=1e-9)


def test_phases_are_judged_apart() -> None:
    layout = layout_from_hosts([[[0], [1]]], experts=2)
    table = dispatch_table(layout, Topology(2), dispatch=Dispatch.EVEN)
    even, skewed = [[[5, 5]]], [[[10, 0]]]
    found = step_overflow(
        counts(np.array([even, skewed, skewed]), [PREFILL, DECODE, DECODE]), table, capacity_factor=1.5
    )
    assert {each.phase: (each.steps, each.overflow_share > 0) for each in found} == {
        "prefill": (1, False),
        "decode": (2, True),
    }


@given(instances(), st.sampled_from(Dispatch), st.sampled_from([0.8, 1.0, 1.25]))
@settings(max_examples=60, deadline=None)
def test_a_window_per_step_gives_the_same_figures(instance: Instance, dispatch: Dispatch, factor: float) -> None:
    """The ruler of windows, with every step a window of its own, is the other way to count."""
    demand = instance.demand
    steps = StepCounts(
        demand.tokens_WLSE.astype(np.uint32),
        np.arange(demand.windows, dtype=np.int32),
        np.full(demand.windows, DECODE, dtype=np.uint8),
        demand.windows,
        demand.sources,
    )
    table = dispatch_table(instance.layout, instance.topology, dispatch=dispatch)
    (found,) = step_overflow(steps, table, capacity_factor=factor)
    metrics = score(instance.layout, demand, instance.topology, dispatch=dispatch, capacity_factor=factor)
    assert found.overflow_share == pytest.approx(metrics.overflow_share, abs=1e-9)
    assert (found.rerouted, found.dropped) == pytest.approx((metrics.rerouted, metrics.dropped), abs=1e-9)


def test_work_is_bounded_whatever_the_number_of_steps() -> None:
    layout = layout_from_hosts([[[0], [1]]], experts=2)
    table = dispatch_table(layout, Topology(2), dispatch=Dispatch.EVEN)
    many = np.tile(np.array([[[[3, 1]]]]), (3 * MOST_FLOWS + 1, 1, 1, 1))
    (found,) = step_overflow(counts(many, [DECODE] * len(many)), table, capacity_factor=1.0)
    assert MOST_FLOWS // 2 < found.steps <= MOST_FLOWS
    assert found.overflow_share == pytest.approx(0.25)


def test_a_token_trace_that_knows_its_steps_has_it_beside_its_other_figures() -> None:
    layout = layout_from_hosts([[[0], [1]]], experts=2)
    tokens = Tokens(
        experts_LTK=np.array([[[0], [0], [1], [1]]], dtype=np.uint16),
        experts=2,
        home_T=np.array([0, 1, 0, 1], dtype=np.int32),
        window_T=np.zeros(4, dtype=np.int32),
        request_T=np.arange(4),
        step_T=np.array([0, 0, 1, 1]),
        phase_T=np.full(4, DECODE, dtype=np.uint8),
    )
    demand = Demand(np.array([[[[1, 1], [1, 1]]]]), "measured", ("w",))
    metrics = score(layout, demand, Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC)
    assert (metrics.overflow_share, metrics.step_overflow) == (0, ())
    found = score_tokens({"a": layout}, [tokens], Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC, capacity_factor=1.5)
    (step,) = metrics.with_tokens(found["a"]).step_overflow
    assert step.steps == 2
    assert step.overflow_share == pytest.approx(0.25)
