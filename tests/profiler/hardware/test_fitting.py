from __future__ import annotations

import numpy as np
import pytest

from placement.hardware import ExpertTimes
from placement.model_shape import ExpertShape
from profiler.hardware.fitting import ExpertSample, LinkSample, fit_expert_times, fit_link

SHAPES = tuple(ExpertShape(hidden, width, 6 * hidden * width) for hidden, width in ((2048, 1408), (7168, 2048)))


def test_made_up_times_give_their_figures_back() -> None:
    true = ExpertTimes(60e-6, 2.5e12, 3.0, {"bf16": 4e14})
    samples = [
        ExpertSample(shape, rows, active, float(true.seconds(rows, active, expert=shape)))
        for shape in SHAPES
        for rows in (256, 4096, 65536)
        for active in (4, 16, 64)
    ]
    found = fit_expert_times(samples)
    assert found.fixed_s == pytest.approx(true.fixed_s, rel=1e-3)
    assert found.weight_bytes_per_s == pytest.approx(true.weight_bytes_per_s, rel=1e-3)
    assert found.overlap == pytest.approx(true.overlap, rel=1e-3)
    assert found.flops_per_s["bf16"] == pytest.approx(true.flops_per_s["bf16"], rel=1e-3)


def test_a_line_gives_its_fixed_part_and_bandwidth_back() -> None:
    samples = [LinkSample(0.0, size, 1e-4 + size / 2e11) for size in (1e3, 1e6, 1e8)]
    figures = fit_link(samples)
    assert figures.handled_bytes_per_s is None
    assert (figures.fixed_s, figures.sent_bytes_per_s) == pytest.approx((1e-4, 2e11), rel=1e-6)


def test_handling_and_sending_are_told_apart() -> None:
    sizes = np.array([[1e8, 0], [1e8, 1e8], [2e8, 5e7]])
    samples = [LinkSample(handled, sent, 2e-4 + handled / 5e11 + sent / 1e11) for handled, sent in sizes]
    figures = fit_link(samples, fixed_s=2e-4)
    assert figures.fixed_s == 2e-4
    assert figures.handled_bytes_per_s == pytest.approx(5e11, rel=1e-6)
    assert figures.sent_bytes_per_s == pytest.approx(1e11, rel=1e-6)
