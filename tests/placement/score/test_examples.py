"""The ruler on examples worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption, EmptyProfile, LayoutMismatch, SlotCountMismatch, SourceCountMismatch
from placement.layout import Layout, layout_from_hosts
from placement.score import loads_WLG, score
from placement.topology import Topology
from tests.case_files import case, case_json

DYNAMIC, STATIC, EVEN = Dispatch.NEAREST_DYNAMIC, Dispatch.NEAREST_STATIC, Dispatch.EVEN


def _trivial(*, layers: int, experts: int, gpus: int) -> Layout:
    return Layout(np.tile(np.arange(experts), (layers, 1)), gpus=gpus, experts=experts)


def _measured(tokens_WLSE: object) -> Demand:
    tokens = np.asarray(tokens_WLSE)
    return Demand(tokens, "measured", tuple(f"w{index}" for index in range(len(tokens))))


# ------------------------------------------------------------------------------------------------ load and balance


def test_loads_of_a_trivial_layout_are_the_counts_of_its_experts():
    demand = Demand.uniform([[10, 20, 30, 40], [0, 0, 0, 0]])
    layout = _trivial(layers=2, experts=4, gpus=2)

    loads = loads_WLG(layout, demand, Topology(2), dispatch=DYNAMIC)

    np.testing.assert_allclose(loads, [[[30, 70], [0, 0]]])


def test_uniform_sources_split_a_replica_by_who_holds_it():
    # Expert 0 is on GPUs 0 and 1 of three. Each holder keeps its third, GPU 2's third is split.
    layout = layout_from_hosts([[[0, 1], [0, 2], [1, 2]]], experts=3)
    demand = Demand.uniform([[60, 0, 0]])

    np.testing.assert_allclose(loads_WLG(layout, demand, Topology(3), dispatch=DYNAMIC), [[[30, 30, 0]]])
    assert score(layout, demand, Topology(3), dispatch=DYNAMIC).local_gpu == pytest.approx(2 / 3)


def test_measured_sources_decide_where_tokens_are_served():
    # Source 0 sends 8 tokens to expert 0 (held), source 1 sends 2 (held), source 2 sends 4 (spread over both).
    layout = layout_from_hosts([[[0, 1], [0, 2], [1, 2]]], experts=3)
    demand = _measured([[[[8, 0, 0], [2, 0, 0], [4, 0, 0]]]])

    metrics = score(layout, demand, Topology(3), dispatch=DYNAMIC)

    np.testing.assert_allclose(loads_WLG(layout, demand, Topology(3), dispatch=DYNAMIC), [[[10, 4, 0]]])
    assert metrics.local_gpu == pytest.approx(10 / 14)
    assert metrics.imbalance == pytest.approx(10 / (14 / 3))
    assert metrics.sources == "measured"


def test_local_node_counts_what_stays_inside_the_node():
    # Nodes {0, 1} and {2, 3}; experts 0..3 on GPUs 0..3; uniform sources.
    demand = Demand.uniform([[8, 8, 0, 0]])

    metrics = score(_trivial(layers=1, experts=4, gpus=4), demand, Topology(4, 2), dispatch=DYNAMIC)

    assert (metrics.local_gpu, metrics.local_node) == (pytest.approx(0.25), pytest.approx(0.5))
    assert metrics.local_reason is None


def test_windows_are_not_added_up_before_the_maximum():
    # Each window loads one GPU alone. Added up they would look perfectly balanced.
    demand = Demand.uniform([[[10, 0]], [[0, 10]]], ("first", "second"))
    layout = _trivial(layers=1, experts=2, gpus=2)

    apart = score(layout, demand, Topology(2), dispatch=DYNAMIC)
    merged = score(layout, demand.merged(), Topology(2), dispatch=DYNAMIC)

    assert (apart.imbalance, merged.imbalance) == (pytest.approx(2), pytest.approx(1))


def test_worst_window_and_worst_layer_are_named():
    demand = Demand.uniform([[[5, 5], [6, 4]], [[5, 5], [9, 1]]], ("calm", "skewed"))

    metrics = score(_trivial(layers=2, experts=2, gpus=2), demand, Topology(2), dispatch=DYNAMIC)

    assert metrics.imbalance == pytest.approx((5 + 6 + 5 + 9) / 20)
    assert (metrics.worst_window.name, metrics.worst_window.imbalance) == ("skewed", pytest.approx(14 / 10))
    assert (metrics.worst_layer.layer, metrics.worst_layer.imbalance) == (1, pytest.approx(15 / 10))
    assert [window.tokens for window in metrics.windows] == [20, 20]


def test_dense_layers_stay_out_of_every_figure():
    with_dense = Demand.uniform([[0, 0], [3, 1]])
    without = Demand.uniform([[3, 1]])

    metrics = score(_trivial(layers=2, experts=2, gpus=2), with_dense, Topology(2), dispatch=DYNAMIC)
    expected = score(_trivial(layers=1, experts=2, gpus=2), without, Topology(2), dispatch=DYNAMIC)

    assert [layer.layer for layer in metrics.layers] == [1]
    assert (metrics.imbalance, metrics.sglang_balancedness) == (expected.imbalance, expected.sglang_balancedness)
    assert metrics.local_gpu == expected.local_gpu


def test_a_layer_without_tokens_in_one_window_adds_nothing_there():
    demand = Demand.uniform([[[3, 1], [4, 0]], [[2, 2], [0, 0]]], ("both", "one"))

    metrics = score(_trivial(layers=2, experts=2, gpus=2), demand, Topology(2), dispatch=DYNAMIC)

    assert metrics.imbalance == pytest.approx((3 + 4 + 2) / (2 + 2 + 2))
    assert metrics.sglang_balancedness == pytest.approx((2 / 3 + 2 / 4 + 2 / 2) / 3)


def test_a_window_without_any_token_has_no_row():
    demand = Demand.uniform([[[3, 1]], [[0, 0]]], ("busy", "idle"))

    metrics = score(_trivial(layers=1, experts=2, gpus=2), demand, Topology(2), dispatch=DYNAMIC)

    assert [window.name for window in metrics.windows] == ["busy"]
    assert metrics.imbalance == pytest.approx(1.5)


def test_even_dispatch_has_no_local_share_and_says_why():
    metrics = score(_trivial(layers=1, experts=2, gpus=2), Demand.uniform([[3, 1]]), Topology(2), dispatch=EVEN)

    assert metrics.local_gpu is None
    assert metrics.local_node is None
    assert metrics.windows[0].local_gpu is None
    assert metrics.layers[0].local_gpu is None
    assert "every rank sees every token" in metrics.local_reason
    assert (metrics.imbalance, metrics.dispatch) == (pytest.approx(1.5), "even")


def test_static_loads_follow_the_ranks_own_tables():
    hosts = [[gpu // 2, 6 + gpu % 6] for gpu in range(12)]
    layout = layout_from_hosts([hosts], experts=12)
    demand = Demand.uniform(np.full((1, 12), 12))

    static = score(layout, demand, Topology(12), dispatch=STATIC)
    dynamic = score(layout, demand, Topology(12), dispatch=DYNAMIC)

    assert dynamic.imbalance == pytest.approx(1)
    assert static.imbalance > 1.05
    assert static.local_gpu == pytest.approx(dynamic.local_gpu)


def test_duplicated_slots_are_counted():
    layout = layout_from_hosts([[[0, 0], [1, 2]]], experts=3)

    assert score(layout, Demand.uniform([[1, 1, 1]]), Topology(2), dispatch=DYNAMIC).duplicated_slots == 1


# --------------------------------------------------------------------------------------------------------- cases


def test_balancedness_is_taken_over_gpus_not_layers():
    known = case("D01")
    oracle = known["expect"]["oracle"]
    demand = Demand.uniform(case_json("D01", "rank_tokens.json"))

    metrics = score(_trivial(layers=3, experts=2, gpus=2), demand, Topology(2), dispatch=DYNAMIC)

    assert metrics.balancedness == pytest.approx(oracle["right"], abs=1e-4)
    assert metrics.sglang_balancedness == pytest.approx(oracle["right"], abs=1e-4)


def test_every_engines_definition_can_be_read_off_the_metrics():
    known = case("D03")
    oracle = known["expect"]["oracle"]
    demand = Demand.uniform(case_json("D03", "rank_tokens.json"))

    metrics = score(_trivial(layers=2, experts=2, gpus=2), demand, Topology(2), dispatch=DYNAMIC)

    by_layer = [layer.imbalance for layer in metrics.layers]
    assert metrics.sglang_balancedness == pytest.approx(oracle["sglang_mean_of_ratios"], abs=1e-4)
    assert metrics.balancedness == pytest.approx(oracle["vllm_ratio_of_sums"], abs=1e-4)
    assert np.mean(by_layer) - 1 == pytest.approx(oracle["trtllm_imbalance_ratio"], abs=1e-4)
    assert metrics.worst_layer.imbalance == pytest.approx(oracle["ascend_peak_to_average_max"], abs=1e-4)


def test_all_zero_layers_do_not_raise_balancedness():
    """SGLang's mean counts a layer without tokens as 1.0; ours is over MoE layers."""
    known = case("P12")
    oracle = known["expect"]["oracle"]
    counts = [[0] * 8, [0] * 8, [10, 10, 10, 10, 30, 30, 0, 0], [40, 10, 20, 20, 10, 20, 10, 20]]  # dump.pt

    metrics = score(
        _trivial(layers=4, experts=8, gpus=known["params"]["ep_size"]),
        Demand.uniform(counts),
        Topology(4),
        dispatch=EVEN,
    )

    assert [layer.layer for layer in metrics.layers] == oracle["moe_layers"]
    assert metrics.sglang_balancedness == pytest.approx(oracle["balancedness_moe_only"], abs=1e-4)
    with_dense_as_one = (2 * 1.0 + 2 * metrics.sglang_balancedness) / 4
    assert with_dense_as_one == pytest.approx(oracle["balancedness_all_layers_wrong"], abs=1e-4)


# --------------------------------------------------------------------------------------------------------- refused


def test_no_tokens_at_all_are_refused():
    with pytest.raises(EmptyProfile):
        score(_trivial(layers=1, experts=2, gpus=2), Demand.uniform([[0, 0]]), Topology(2), dispatch=DYNAMIC)


@pytest.mark.parametrize("counts", [[[1, 1, 1]], [[1, 1], [1, 1]]], ids=["experts", "layers"])
def test_demand_of_another_model_is_refused(counts):
    layout = _trivial(layers=1, experts=2, gpus=2)

    with pytest.raises(LayoutMismatch, match="the layout has 1 layers x 2 experts"):
        score(layout, Demand.uniform(counts), Topology(2), dispatch=DYNAMIC)
    with pytest.raises(LayoutMismatch):
        loads_WLG(layout, Demand.uniform(counts), Topology(2), dispatch=DYNAMIC)


def test_a_topology_with_other_gpus_is_refused():
    with pytest.raises(SlotCountMismatch):
        score(_trivial(layers=1, experts=4, gpus=2), Demand.uniform([[1] * 4]), Topology(4), dispatch=DYNAMIC)


@pytest.mark.parametrize("dispatch", list(Dispatch))
def test_demand_measured_for_other_sources_is_refused(dispatch):
    demand = _measured(np.ones((1, 1, 4, 2), dtype=int))

    with pytest.raises(SourceCountMismatch, match="4 source GPUs, the topology has 2"):
        score(_trivial(layers=1, experts=2, gpus=2), demand, Topology(2), dispatch=dispatch)


@pytest.mark.parametrize("capacity_factor", [0, -1, math.nan, math.inf])
def test_a_capacity_factor_must_be_a_finite_number_above_zero(capacity_factor):
    with pytest.raises(BadOption, match="capacity_factor"):
        score(
            _trivial(layers=1, experts=2, gpus=2),
            Demand.uniform([[1, 1]]),
            Topology(2),
            dispatch=DYNAMIC,
            capacity_factor=capacity_factor,
        )
