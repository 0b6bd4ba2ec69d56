"""The tables of the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from api.report.layout_bars import layout_bars
from api.report.numbers import fine_percent
from api.report.tables import MOST_WINDOWS, OURS, capacity, comparison, gpu_rows, layer_rows, windows
from placement.dispatch import Dispatch
from placement.plan import Plan
from placement.problem import LocalScope
from placement.topology import Topology
from tests.sample_plans import make_plan, skewed_demand, small_sample


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(small_sample())


def _column(plan: Plan, name: str) -> dict[str, tuple[str, bool]]:
    found = comparison(plan)
    index = found.columns.index(name)
    return {row.name: (row.cells[index].text, row.cells[index].is_best) for row in found.rows}


def test_the_plan_stands_beside_every_baseline(plan: Plan) -> None:
    rows = comparison(plan).rows
    assert [row.name for row in rows] == [OURS, "trivial", "random", "eplb", "hot_replication"]
    assert [row.is_ours for row in rows] == [True, False, False, False, False]
    assert _column(plan, "imbalance")["eplb"][0] == f"{plan.baselines['eplb'].imbalance:.3f}"


def test_the_best_of_a_column_is_marked_whoever_it_is(plan: Plan) -> None:
    shares = _column(plan, "local_gpu")
    assert shares[OURS][1]
    assert not shares["random"][1]
    worse = replace(plan, metrics=replace(plan.metrics, imbalance=1.9))
    column = _column(worse, "imbalance")
    assert not column[OURS][1]
    assert column["hot_replication"][1]


def test_costs_have_no_best(plan: Plan) -> None:
    assert not any(best for _, best in _column(plan, "moved_slots").values())


def test_columns_appear_where_they_mean_something(plan: Plan) -> None:
    assert "local_node" not in comparison(plan).columns
    assert not any("holdout" in name for name in comparison(plan).columns)
    nodes = make_plan(replace(small_sample(), topology=Topology(4, 2), holdout=skewed_demand(seed=3)))
    assert {"local_node", "holdout local_gpu", "holdout imbalance"} <= set(comparison(nodes).columns)
    by_node = replace(nodes, options=replace(nodes.options, local_scope=LocalScope.NODE))
    assert "holdout local_node" in comparison(by_node).columns


def test_every_capacity_factor_has_what_overflows_and_what_is_dropped(plan: Plan) -> None:
    table = capacity(plan)
    factors = [at.capacity_factor for at in plan.metrics.capacity]
    assert factors == [1.0, 1.25, 1.5, 2.0]
    assert table.columns == tuple(f"{name} at {at:g}" for at in factors for name in ("overflow_share", "dropped"))
    trivial = next(row for row in table.rows if row.name == "trivial")
    at_mean = plan.baselines["trivial"].capacity[0]
    assert at_mean.dropped > 0
    assert [cell.text for cell in trivial.cells[:2]] == [
        fine_percent(at_mean.overflow_share),
        fine_percent(at_mean.dropped),
    ]


def test_undefined_shares_are_dashes_and_never_best() -> None:
    even = make_plan(replace(small_sample(), dispatch=Dispatch.EVEN))
    assert set(_column(even, "local_gpu").values()) == {("\N{EN DASH}", False)}


def test_the_worst_window_is_marked(plan: Plan) -> None:
    (worst,) = (row.name for row in windows(plan.metrics).rows if row.is_worst)
    assert worst == plan.metrics.worst_window.name
    assert windows(plan.metrics).left_out == 0


def test_of_many_windows_the_worst_are_shown() -> None:
    plan = make_plan(replace(small_sample(), demand=skewed_demand(windows=MOST_WINDOWS + 7, layers=2)))
    found = windows(plan.metrics)
    assert len(found.rows) == MOST_WINDOWS
    assert found.left_out == 7
    assert found.rows[0].is_worst
    shown = {row.name for row in found.rows}
    left_out = [window.imbalance for window in plan.metrics.windows if window.name not in shown]
    assert max(left_out) <= min(window.imbalance for window in plan.metrics.windows if window.name in shown)


def test_layers_are_the_maps_in_numbers(plan: Plan) -> None:
    rows = layer_rows(plan)
    assert [row.layer for row in rows] == [1, 2, 3, 4, 5]
    for row in rows:
        hottest = int(row.hottest.split()[0])
        assert plan.heat_LE[row.layer, hottest] == plan.heat_LE[row.layer].max()
        assert row.tokens == f"{plan.heat_LE[row.layer].sum():,}"
        assert row.moved == str(plan.moves.by_layer[row.layer])
        load_G = plan.load_after_LG[row.layer]
        assert float(row.after) == pytest.approx(load_G.max() / load_G.mean(), abs=0.006)


def test_gpus_are_the_totals_in_numbers(plan: Plan) -> None:
    rows = gpu_rows(replace(plan, topology=Topology(4, 2)))
    assert [(row.gpu, row.node) for row in rows] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert sum(int(row.tokens.replace(",", "")) for row in rows) == plan.load_after_LG.sum()
    assert sum(int(row.received) for row in rows) == plan.moves.moved_slots
    assert sum(float(row.before) for row in rows) == pytest.approx(4, abs=0.002)


def test_bars_show_the_share_against_target_and_bound(plan: Plan) -> None:
    bars = layout_bars(plan)
    assert bars.metric == "local_gpu"
    assert bars.target_at == "60.000%"
    assert bars.bound
    assert all('class="target"' in row.bar and 'class="bound"' in row.bar for row in bars.rows)


def test_bars_show_the_balance_where_no_share_is_defined() -> None:
    bars = layout_bars(make_plan(replace(small_sample(), dispatch=Dispatch.EVEN)))
    assert bars.metric == "balancedness"
    assert (bars.target, bars.bound) == ("", "")
    assert not any("<line" in row.bar for row in bars.rows)
