"""The dispatch model by hand and by its properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.dispatch import SPREAD, Dispatch, dispatch_table
from placement.errors import SlotCountMismatch
from placement.layout import Layout, layout_from_hosts
from placement.topology import Topology
from tests.placement.instances import instances

NEAREST = [Dispatch.NEAREST_DYNAMIC, Dispatch.NEAREST_STATIC]


def _share(hosts_GS: list[list[int]], *, nodes: int, experts: int, dispatch: Dispatch) -> np.ndarray:
    layout = layout_from_hosts([hosts_GS], experts=experts)
    return dispatch_table(layout, Topology(layout.gpus, nodes), dispatch=dispatch).share_SEG(0)


@pytest.mark.parametrize("dispatch", list(Dispatch))
def test_an_expert_with_one_slot_is_served_there_for_everyone(dispatch):
    share_SEG = _share([[0], [1]], nodes=1, experts=2, dispatch=dispatch)

    np.testing.assert_array_equal(share_SEG, [[[1, 0], [0, 1]]] * 2)


@pytest.mark.parametrize("dispatch", NEAREST)
def test_own_gpu_comes_first(dispatch):
    share_SEG = _share([[0, 1], [0, 2]], nodes=1, experts=3, dispatch=dispatch)

    np.testing.assert_array_equal(share_SEG[:, 0], [[1, 0], [0, 1]])


@pytest.mark.parametrize("dispatch", NEAREST)
def test_own_node_comes_second_and_sends_all_to_its_first_slot(dispatch):
    # Expert 0 is on GPUs 1 and 2 of node 0 and on GPU 4 of node 1; GPU 0 and 3, 5 must choose.
    share_SEG = _share([[1], [0], [0], [2], [0], [3]], nodes=2, experts=4, dispatch=dispatch)

    np.testing.assert_array_equal(share_SEG[0, 0], [0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(share_SEG[3, 0], [0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(share_SEG[5, 0], [0, 0, 0, 0, 1, 0])


def test_a_node_that_holds_all_replicas_gives_no_preference():
    # GPU 0 sees both replicas of expert 0 on its own node, GPU 3 sees none: both spread.
    share_SEG = _share([[1], [0], [0], [2], [3], [4]], nodes=2, experts=5, dispatch=Dispatch.NEAREST_DYNAMIC)

    np.testing.assert_array_equal(share_SEG[0, 0], [0, 0.5, 0.5, 0, 0, 0])
    np.testing.assert_array_equal(share_SEG[3, 0], [0, 0.5, 0.5, 0, 0, 0])


@pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.EVEN])
def test_a_gpu_that_holds_an_expert_twice_takes_two_shares_of_the_spread(dispatch):
    share_SEG = _share([[0, 0], [0, 1], [2, 3]], nodes=1, experts=4, dispatch=dispatch)

    np.testing.assert_allclose(share_SEG[2, 0], [2 / 3, 1 / 3, 0])


def test_own_gpus_first_slot_is_taken_when_it_holds_an_expert_twice():
    layout = layout_from_hosts([[[1, 0, 0], [0, 2, 3]]], experts=4)

    table = dispatch_table(layout, Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC)

    assert table.slot_LSE[0, :, 0].tolist() == [1, 3]


def test_even_ignores_where_the_token_is():
    share_SEG = _share([[0, 1], [0, 2]], nodes=1, experts=3, dispatch=Dispatch.EVEN)

    np.testing.assert_array_equal(share_SEG[:, 0], [[0.5, 0.5], [0.5, 0.5]])


def test_static_is_not_even():
    # Each of 12 experts is on two GPUs. Dealt evenly, each replica would serve 6 ranks; but ranks skip the deals of the
    # experts that they hold, so that their generators part and the deals no longer fit together.
    hosts = [[gpu // 2, 6 + gpu % 6] for gpu in range(12)]
    layout = layout_from_hosts([hosts], experts=12)

    table = dispatch_table(layout, Topology(12), dispatch=Dispatch.NEAREST_STATIC)

    sources_EG = table.share_SEG(0).sum(axis=0)
    assert sources_EG.sum(axis=1).tolist() == [12] * 12
    assert sources_EG.max() > 6


def test_a_layers_static_table_depends_on_the_layers_before_it():
    layer = [[gpu // 2, 6 + gpu % 6] for gpu in range(12)]
    twice = layout_from_hosts([layer, layer], experts=12)

    slot_LSE = dispatch_table(twice, Topology(12), dispatch=Dispatch.NEAREST_STATIC).slot_LSE

    assert not np.array_equal(slot_LSE[0], slot_LSE[1])


def test_a_layout_for_other_gpus_is_refused():
    layout = Layout(np.arange(8)[None], gpus=4, experts=8)

    with pytest.raises(SlotCountMismatch, match="on 4 GPUs, the topology has 8"):
        dispatch_table(layout, Topology(8), dispatch=Dispatch.EVEN)


def test_tables_cannot_be_changed():
    table = dispatch_table(Layout(np.arange(4)[None], gpus=2, experts=4), Topology(2), dispatch=Dispatch.EVEN)

    with pytest.raises(ValueError, match="read-only"):
        table.slot_LSE[0, 0, 0] = 0


@given(instances(), st.sampled_from(Dispatch))
@settings(max_examples=60, deadline=None)
def test_shares_sum_to_one_and_fall_on_hosts_only(instance, dispatch):
    table = dispatch_table(instance.layout, instance.topology, dispatch=dispatch)

    for layer in range(instance.layout.layers):
        share_SEG = table.share_SEG(layer)
        np.testing.assert_allclose(share_SEG.sum(axis=2), 1)
        assert not share_SEG[:, instance.layout.replicas_LEG[layer] == 0].any()


@given(instances(), st.sampled_from(Dispatch))
@settings(max_examples=60, deadline=None)
def test_the_condensed_forms_agree_with_the_full_shares(instance, dispatch):
    table = dispatch_table(instance.layout, instance.topology, dispatch=dispatch)
    gpus, node_of_gpu_G = instance.topology.gpus, instance.topology.node_of_gpu_G

    for layer in range(instance.layout.layers):
        share_SEG = table.share_SEG(layer)
        np.testing.assert_allclose(table.mean_share_EG(layer), share_SEG.mean(axis=0))
        np.testing.assert_allclose(
            table.own_gpu_share_SE(layer), np.stack([share_SEG[gpu, :, gpu] for gpu in range(gpus)])
        )
        in_node_SE = [share_SEG[gpu][:, node_of_gpu_G == node_of_gpu_G[gpu]].sum(axis=1) for gpu in range(gpus)]
        np.testing.assert_allclose(table.own_node_share_SE(layer), in_node_SE)


@given(instances())
@settings(max_examples=40, deadline=None)
def test_static_only_fixes_what_dynamic_spreads(instance):
    dynamic = dispatch_table(instance.layout, instance.topology, dispatch=Dispatch.NEAREST_DYNAMIC).slot_LSE
    static = dispatch_table(instance.layout, instance.topology, dispatch=Dispatch.NEAREST_STATIC).slot_LSE

    np.testing.assert_array_equal(static[dynamic != SPREAD], dynamic[dynamic != SPREAD])
    assert (static >= 0).all()
    layer, _, expert = np.indices(static.shape)
    np.testing.assert_array_equal(instance.layout.slot_to_expert_LP[layer, static], expert)


@given(instances(), st.sampled_from(Dispatch), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_slots_inside_a_gpu_changes_no_share(instance, dispatch, order):
    """Also under static dispatch: the deal picks replicas by position, and GPUs stay in order."""
    layout = instance.layout
    shuffled_LP = layout.slot_to_expert_LP.copy()
    for row in shuffled_LP:
        for gpu in range(layout.gpus):
            here = slice(gpu * layout.slots_per_gpu, (gpu + 1) * layout.slots_per_gpu)
            row[here] = order.sample(row[here].tolist(), k=layout.slots_per_gpu)
    shuffled = Layout(shuffled_LP, gpus=layout.gpus, experts=layout.experts)

    before = dispatch_table(layout, instance.topology, dispatch=dispatch)
    after = dispatch_table(shuffled, instance.topology, dispatch=dispatch)

    for layer in range(layout.layers):
        np.testing.assert_array_equal(after.share_SEG(layer), before.share_SEG(layer))
