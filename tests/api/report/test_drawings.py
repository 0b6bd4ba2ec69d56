"""Charts: what is drawn is what was measured."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from api.report.axes import legend, ticks
from api.report.bars import columns_svg, paired_columns_svg, share_bar_svg
from api.report.cells import NO_STEP, cells_svg, steps
from api.report.heat_map import LIMITS, heat_map
from api.report.load_map import load_maps
from api.report.relative import over_row_mean, total_over_mean
from tests.api.report.markup import painted_steps
from tests.sample_plans import make_plan, small_sample


@settings(deadline=None)
@given(arrays(np.int64, st.tuples(st.integers(1, 7), st.integers(1, 12)), elements=st.integers(-1, 4)))
def test_every_cell_is_painted_once_in_its_step(step_RC: npt.NDArray[np.int64]) -> None:
    svg = cells_svg(step_RC, scale="heat", label="x")
    rows, columns = step_RC.shape
    assert np.array_equal(painted_steps(svg, rows=rows, columns=columns, scale="heat"), step_RC)
    assert f'viewBox="0 -.5 {columns} {rows}"' in svg


def test_neighbours_of_one_step_are_one_stroke() -> None:
    svg = cells_svg(np.zeros((2, 300), dtype=np.int64), scale="heat", label="x")
    assert svg.count("h300") == 2
    assert len(svg) < 250


def test_labels_are_escaped() -> None:
    svg = cells_svg(np.zeros((1, 1), dtype=np.int64), scale="heat", label='"><script>&')
    assert "<script>" not in svg
    assert ElementTree.fromstring(svg).attrib["aria-label"] == '"><script>&'


@pytest.mark.parametrize(
    ("value", "step"),
    [(0.0, 0), (0.249, 0), (0.25, 1), (0.99, 3), (1.0, 4), (3.99, 7), (4.0, 8), (1e9, 8), (np.nan, NO_STEP)],
)
def test_values_fall_into_the_step_below_their_limit(value: float, step: int) -> None:
    assert steps(np.array([[value]]), LIMITS).tolist() == [[step]]


def test_limits_rise() -> None:
    assert all(a < b for a, b in itertools.pairwise(LIMITS))


def test_tokens_over_their_rows_mean() -> None:
    relative = over_row_mean(np.array([[0, 0], [1, 3]]))
    assert np.isnan(relative[0]).all()
    assert relative[1].tolist() == [0.5, 1.5]
    assert total_over_mean(np.array([[0, 0], [1, 3]])).tolist() == [0.5, 1.5]


def test_the_heat_map_shows_every_layer_and_expert() -> None:
    plan = make_plan(small_sample())
    drawn = painted_steps(heat_map(plan).svg, rows=6, columns=32, scale="heat")
    assert (drawn[0] == NO_STEP).all()  # the dense layer
    assert np.array_equal(drawn, steps(over_row_mean(plan.heat_LE), LIMITS))
    layer, expert = np.unravel_index(int(np.nanargmax(over_row_mean(plan.heat_LE))), plan.heat_LE.shape)
    assert f"Hottest is expert {expert} in layer {layer}" in heat_map(plan).svg
    assert heat_map(plan).has_dense


def test_both_loads_are_on_one_scale() -> None:
    plan = make_plan(small_sample())
    maps = load_maps(plan)
    before = painted_steps(maps.before, rows=6, columns=4, scale="load")
    after = painted_steps(maps.after, rows=6, columns=4, scale="load")
    middle = 4
    assert (after[1:] == middle).mean() > 0.9 > (before[1:] == middle).mean()
    assert maps.highest_total == pytest.approx(total_over_mean(plan.load_before_LG).max())


def _widths(svg: str, style: str) -> list[float]:
    return [
        float(rect.attrib["width"].rstrip("%"))
        for rect in ElementTree.fromstring(svg).iter("rect")
        if rect.attrib["class"] == style
    ]


@pytest.mark.parametrize("share", [0.0, 0.536, 1.0])
def test_a_bar_is_as_long_as_its_share(share: float) -> None:
    svg = share_bar_svg(share, style="after", marks=[(0.6, "target")])
    assert _widths(svg, "after") == [pytest.approx(100 * share, abs=1e-3)]
    (line,) = ElementTree.fromstring(svg).iter("line")
    assert line.attrib["x1"] == line.attrib["x2"] == "60.000%"


def _heights(svg: str, style: str) -> list[float]:
    rects = [rect for rect in ElementTree.fromstring(svg).iter("rect") if rect.attrib["class"] == style]
    for rect in rects:  # every column stands on the ground
        assert float(rect.attrib["y"][:-1]) + float(rect.attrib["height"][:-1]) == pytest.approx(100, abs=2e-3)
    return [float(rect.attrib["height"][:-1]) for rect in rects]


def test_paired_columns_share_one_axis() -> None:
    svg = paired_columns_svg(np.array([2.0, 0.5]), np.array([1.0, 1.0]), reference=1.0, label="x")
    assert _heights(svg, "before") == [100.0, 25.0]
    assert _heights(svg, "after") == [50.0, 50.0]
    (line,) = ElementTree.fromstring(svg).iter("line")
    assert line.attrib["y1"] == "50.000%"


def test_columns_are_scaled_to_the_highest_and_zeros_left_out() -> None:
    assert _heights(columns_svg([4, 0, 1], label="x"), "after") == [100.0, 25.0]
    assert _heights(columns_svg([0, 0], label="x"), "after") == []
    assert _heights(columns_svg([3], label="x"), "after") == [100.0]


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 20))
def test_ticks_are_few_and_stand_at_the_middle_of_their_cells(length: int, at_most: int) -> None:
    found = ticks(length, at_most=at_most)
    assert 1 <= len(found) <= at_most
    for tick in found:
        assert tick.at_percent == pytest.approx((int(tick.label) + 0.5) / length * 100, abs=1e-3)


def test_a_legend_has_one_step_more_than_limits() -> None:
    found = legend("heat", (0.5, 1.0), {1.0: "one"}, unit="times uniform")
    assert [(step.style, step.limit) for step in found.steps] == [("heat-0", ""), ("heat-1", ""), ("heat-2", "one")]
    assert "0.5, 1 times uniform" in found.words
