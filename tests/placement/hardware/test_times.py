from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.errors import BadHardwareProfile
from placement.hardware import ExpertTimes
from tests.placement.hardware.profiles import DECODE, EXPERT, EXPERT_TIMES, PREFILL, PROFILE


def seconds(times: ExpertTimes, rows: float, active: float) -> float:
    return float(times.seconds(rows, active, expert=EXPERT))


def test_without_overlap_rows_and_weights_follow_each_other() -> None:
    assert seconds(EXPERT_TIMES, 7, 3) == pytest.approx(11e-6)


def test_with_much_overlap_the_longer_hides_the_other() -> None:
    assert seconds(replace(EXPERT_TIMES, overlap=200.0), 7, 3) == pytest.approx(8e-6)


def test_an_idle_gpu_takes_the_fixed_part() -> None:
    assert seconds(EXPERT_TIMES, 0, 0) == 1e-6


@given(
    rows=st.floats(0, 1e9),
    more=st.floats(0, 1e9),
    active=st.floats(0, 512),
    overlap=st.floats(1, 50),
)
def test_more_rows_or_experts_never_take_less(rows: float, more: float, active: float, overlap: float) -> None:
    times = replace(EXPERT_TIMES, overlap=overlap)
    least = seconds(times, rows, active)
    assert np.isfinite(least)
    assert seconds(times, rows + more, active) >= least * (1 - 1e-12)
    assert seconds(times, rows, active + 1) >= least * (1 - 1e-12)
    both = seconds(replace(times, overlap=1.0), rows, active)
    assert least <= both * (1 + 1e-12)


def test_fp8_uses_its_own_rate_and_falls_back_to_bf16() -> None:
    fp8 = replace(EXPERT, arithmetic="fp8")
    assert float(EXPERT_TIMES.seconds(7, 0, expert=fp8)) == pytest.approx(8e-6)
    faster = replace(EXPERT_TIMES, flops_per_s={"bf16": 3e10, "fp8": 6e10})
    assert float(faster.seconds(7, 0, expert=fp8)) == pytest.approx(4.5e-6)


def test_the_slower_link_counts() -> None:
    seconds_G = PREFILL.seconds(rows=[0, 0, 0], nvlink_copies=[0, 30, 30], rdma_copies=[0, 2, 4], hidden=100)
    assert seconds_G == pytest.approx([5e-6, 35e-6, 45e-6])


def test_handling_grows_with_rows() -> None:
    slow = replace(PREFILL, handled_bytes_per_s=4e8)
    assert float(slow.seconds(rows=7, nvlink_copies=3, rdma_copies=0, hidden=100)) == pytest.approx(15e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fixed_s": 0.0}, "expert.fixed_s is 0.0"),
        ({"weight_bytes_per_s": float("nan")}, "expert.weight_bytes_per_s is nan"),
        ({"overlap": 0.5}, "at least 1"),
        ({"flops_per_s": {"fp8": 1e12}}, "needs bf16"),
        ({"flops_per_s": {"bf16": 1e12, "fp4": 1e12}}, "needs bf16"),
        ({"flops_per_s": {"bf16": -1.0}}, r"flops_per_s\.bf16 is -1.0"),
    ],
)
def test_figures_of_no_use_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadHardwareProfile, match=sentence):
        replace(EXPERT_TIMES, **change)


@pytest.mark.parametrize("name", ["fixed_s", "nvlink_bytes_per_s", "rdma_bytes_per_s", "handled_bytes_per_s"])
def test_links_without_bandwidth_are_refused(name: str) -> None:
    with pytest.raises(BadHardwareProfile, match=name):
        replace(DECODE, **{name: 0.0})


def test_a_figure_without_a_source_is_refused() -> None:
    sources = {key: text for key, text in PROFILE.sources.items() if key != "decode"}
    with pytest.raises(BadHardwareProfile, match=r"no entry for decode\.fixed_s"):
        replace(PROFILE, sources=sources)


def test_a_source_without_a_figure_is_refused() -> None:
    with pytest.raises(BadHardwareProfile, match="training"):
        replace(PROFILE, sources={**PROFILE.sources, "training": "made up"})


def test_a_source_may_name_one_figure() -> None:
    only_one = {**PROFILE.sources, "expert.flops_per_s.bf16": "a data sheet"}
    assert replace(PROFILE, sources=only_one).sources["expert.flops_per_s.bf16"] == "a data sheet"
