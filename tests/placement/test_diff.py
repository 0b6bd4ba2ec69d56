"""Layout diff, alignment and GPU relabelling."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.diff import GpuMove, align, diff
from placement.dispatch import Dispatch
from placement.errors import BadOption, LayoutMismatch, SlotCountMismatch
from placement.layout import Layout, layout_from_hosts
from placement.relabel import cheapest_gpu_relabelling, with_gpus_relabelled
from placement.score import score
from placement.topology import Topology
from tests.placement.instances import instances, layouts, topologies


@st.composite
def layout_pairs(draw: st.DrawFn, *, most_nodes: int = 4) -> tuple[Layout, Layout, Topology]:
    topology = draw(topologies(most_nodes=most_nodes))
    layers, experts = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    first = draw(layouts(topology=topology, layers=layers, experts=experts))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = [
        generator.permutation(
            np.concatenate([np.arange(experts), generator.integers(0, experts, first.slots - experts)])
        )
        for _ in range(layers)
    ]
    return first, Layout(np.stack(rows), gpus=topology.gpus, experts=experts), topology


# ------------------------------------------------------------------------------------------------------ by hand


def test_the_same_layout_moves_nothing():
    layout = layout_from_hosts([[[0, 1], [2, 3]]], experts=4)

    found = diff(layout, layout, expert_bytes=100)

    assert (found.changed_slots, found.moved_slots, found.moved_bytes, found.moves) == (0, 0, 0, ())


def test_an_expert_that_only_changes_its_slot_on_a_gpu_moves_nothing():
    found = diff(layout_from_hosts([[[0, 1], [2, 3]]], experts=4), layout_from_hosts([[[1, 0], [2, 3]]], experts=4))

    assert (found.changed_slots, found.moved_slots) == (2, 0)


def test_moves_are_counted_by_layer_and_gpu_with_the_experts_named():
    a = layout_from_hosts([[[0, 1], [2, 3], [4, 0]], [[0, 1], [2, 3], [4, 0]]], experts=5)
    b = layout_from_hosts([[[0, 1], [2, 3], [4, 0]], [[1, 4], [2, 0], [3, 4]]], experts=5)

    found = diff(a, b, expert_bytes=1000)

    assert found.moved_L == (0, 3)
    assert found.changed_L == (0, 5)
    assert (found.received_G, found.sent_G) == ((1, 1, 1), (1, 1, 1))
    assert (found.moved_slots, found.moved_bytes) == (3, 3000)
    assert found.moves == (
        GpuMove(layer=1, gpu=0, gained=(4,), lost=(0,)),
        GpuMove(layer=1, gpu=1, gained=(0,), lost=(3,)),
        GpuMove(layer=1, gpu=2, gained=(3,), lost=(0,)),
    )


def test_a_second_slot_for_an_expert_on_the_same_gpu_is_a_move():
    a = layout_from_hosts([[[0, 1], [1, 2]]], experts=3)
    b = layout_from_hosts([[[0, 0], [1, 2]]], experts=3)

    assert diff(a, b).moves == (GpuMove(layer=0, gpu=0, gained=(0,), lost=(1,)),)


def test_bytes_are_unknown_without_the_size_of_an_expert():
    a = layout_from_hosts([[[0], [1]]], experts=2)

    assert diff(a, with_gpus_relabelled(a, [1, 0])).moved_bytes is None


def test_rows_of_dense_layers_can_be_left_out():
    a = layout_from_hosts([[[0], [1]], [[0], [1]]], experts=2)
    b = layout_from_hosts([[[1], [0]], [[1], [0]]], experts=2)

    found = diff(a, b, moe_layers=[1])

    assert (found.moved_L, found.changed_L, found.moved_slots, found.changed_slots) == ((0, 2), (0, 2), 2, 2)
    assert {move.layer for move in found.moves} == {1}


def test_relabelled_gpus_move_nothing():
    a = layout_from_hosts([[[0, 1], [2, 3], [4, 5]]], experts=6)
    b = layout_from_hosts([[[2, 3], [4, 5], [1, 0]]], experts=6)

    found = diff(a, b, relabel_gpus=True)

    assert found.new_gpu_of_G == (1, 2, 0)
    assert (found.moved_slots, found.changed_slots) == (0, 2)
    assert diff(a, b).moved_slots == 6
    assert diff(a, b).new_gpu_of_G is None


def test_one_relabelling_serves_all_layers():
    # Layer 0 alone would swap the GPUs, layers 1 and 2 would not.
    a = layout_from_hosts([[[0], [1]]] * 3, experts=2)
    b = layout_from_hosts([[[1], [0]], [[0], [1]], [[0], [1]]], experts=2)

    found = diff(a, b, relabel_gpus=True)

    assert (found.new_gpu_of_G, found.moved_L) == ((0, 1), (2, 0, 0))


def test_nodes_stay_together_when_gpus_are_relabelled():
    # GPUs 1 and 2 changed places across nodes: on one node that is free, on two it cannot be undone by labels.
    a = layout_from_hosts([[[0], [1], [2], [3]]], experts=4)
    b = layout_from_hosts([[[0], [2], [1], [3]]], experts=4)

    assert diff(a, b, Topology(4), relabel_gpus=True).moved_slots == 0
    assert diff(a, b, Topology(4, 2), relabel_gpus=True).moved_slots == 2


def test_the_result_is_plain_json():
    a = layout_from_hosts([[[0, 1], [2, 3]]], experts=4)

    plain = json.loads(json.dumps(diff(a, with_gpus_relabelled(a, [1, 0]), expert_bytes=5).to_dict()))

    assert (plain["moved_slots"], plain["moved_bytes"], plain["moves"][0]["gained"]) == (4, 20, [2, 3])


# ------------------------------------------------------------------------------------------------------ refused


def test_layouts_of_other_models_are_refused():
    a = layout_from_hosts([[[0, 1], [2, 3]]], experts=4)

    with pytest.raises(LayoutMismatch, match="1 layers x 4 experts and 2 x 4"):
        diff(a, layout_from_hosts([[[0, 1], [2, 3]]] * 2, experts=4))
    with pytest.raises(LayoutMismatch):
        align(a, to=layout_from_hosts([[[0, 1], [2, 0]]], experts=3))


def test_layouts_on_other_slots_are_refused():
    a = layout_from_hosts([[[0, 1], [2, 3]]], experts=4)

    with pytest.raises(SlotCountMismatch, match="4 slots on 2 GPUs and 6 slots on 2"):
        diff(a, layout_from_hosts([[[0, 1, 2], [2, 3, 0]]], experts=4))
    with pytest.raises(SlotCountMismatch):
        diff(a, Layout(np.arange(4)[None], gpus=4, experts=4))
    with pytest.raises(SlotCountMismatch, match="2 GPUs, the topology has 4"):
        diff(a, a, Topology(4), relabel_gpus=True)


def test_options_out_of_range_are_refused():
    a = layout_from_hosts([[[0], [1]]], experts=2)

    with pytest.raises(BadOption, match="expert_bytes is 0"):
        diff(a, a, expert_bytes=0)
    with pytest.raises(BadOption, match="layer 1; there are layers 0 to 0"):
        diff(a, a, moe_layers=[1])
    with pytest.raises(BadOption, match="not a permutation of the GPUs 0 to 1"):
        with_gpus_relabelled(a, [0, 0])


# ------------------------------------------------------------------------------------------------------ properties


@given(layout_pairs())
@settings(max_examples=80, deadline=None)
def test_counts_agree_with_the_moves_and_with_the_way_back(pair):
    a, b, _ = pair
    found, back = diff(a, b), diff(b, a)

    assert sum(len(move.gained) for move in found.moves) == found.moved_slots
    assert all(len(move.gained) == len(move.lost) for move in found.moves)
    assert sum(found.moved_L) == sum(found.received_G) == sum(found.sent_G) == found.moved_slots
    assert found.moved_slots <= found.changed_slots == sum(found.changed_L)
    assert back.moved_slots == found.moved_slots
    for layer, gpu in itertools.product(range(a.layers), range(a.gpus)):
        here = slice(gpu * a.slots_per_gpu, (gpu + 1) * a.slots_per_gpu)
        held = a.slot_to_expert_LP[layer, here].tolist()
        for move in found.moves:
            if (move.layer, move.gpu) == (layer, gpu):
                for expert in move.lost:
                    held.remove(expert)
                held.extend(move.gained)
        assert sorted(held) == sorted(b.slot_to_expert_LP[layer, here].tolist())


@given(layout_pairs())
@settings(max_examples=80, deadline=None)
def test_an_aligned_layout_changes_only_the_slots_that_move(pair):
    a, b, _ = pair

    aligned = align(b, to=a)

    np.testing.assert_array_equal(aligned.replicas_LEG, b.replicas_LEG)
    assert diff(a, aligned).changed_slots == diff(a, aligned).moved_slots == diff(a, b).moved_slots


@given(layout_pairs(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_alignment_does_not_depend_on_the_order_it_starts_from(pair, seed):
    a, b, _ = pair
    by_gpu_LGs = b.slot_to_expert_LP.reshape(b.layers, b.gpus, b.slots_per_gpu)
    shuffled_LGs = np.random.default_rng(seed).permuted(by_gpu_LGs, axis=2)
    shuffled = Layout(shuffled_LGs.reshape(b.layers, b.slots), gpus=b.gpus, experts=b.experts)

    assert align(shuffled, to=a) == align(b, to=a)


@given(instances(), st.sampled_from(Dispatch), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_alignment_changes_no_metric(instance, dispatch, seed):
    order = np.random.default_rng(seed).permuted(instance.layout.slot_to_expert_LP, axis=1)
    aligned = align(instance.layout, to=Layout(order, gpus=instance.layout.gpus, experts=instance.layout.experts))

    before = score(instance.layout, instance.demand, instance.topology, dispatch=dispatch)
    assert score(aligned, instance.demand, instance.topology, dispatch=dispatch) == before


@given(layout_pairs(most_nodes=3))
@settings(max_examples=40, deadline=None)
def test_relabelling_is_the_cheapest_that_keeps_nodes_together(pair):
    a, b, topology = pair
    found = diff(a, b, topology, relabel_gpus=True)
    labels = found.new_gpu_of_G

    assert sorted(labels) == list(range(topology.gpus))
    node_G = topology.node_of_gpu_G
    for node in range(topology.nodes):
        assert len({int(node_G[labels[gpu]]) for gpu in np.flatnonzero(node_G == node)}) == 1
    assert found.moved_slots == diff(a, with_gpus_relabelled(b, labels)).moved_slots
    assert found.moved_slots <= diff(a, b).moved_slots
    if topology.gpus <= 6:  # few enough to try them all
        size = topology.gpus_per_node
        best = min(
            diff(a, with_gpus_relabelled(b, tried)).moved_slots
            for nodes in itertools.permutations(range(topology.nodes))
            for inside in itertools.product(itertools.permutations(range(size)), repeat=topology.nodes)
            for tried in [[node * size + gpu for node, gpus in zip(nodes, inside, strict=True) for gpu in gpus]]
        )
        assert found.moved_slots == best


@given(instances(most_nodes=3), st.randoms())
@settings(max_examples=40, deadline=None)
def test_a_relabelled_layout_is_undone_for_free(instance, order):
    topology = instance.topology
    size = topology.gpus_per_node
    labels = [
        node * size + gpu
        for node in order.sample(range(topology.nodes), k=topology.nodes)
        for gpu in order.sample(range(size), k=size)
    ]
    relabelled = with_gpus_relabelled(instance.layout, labels)
    every_layer = np.ones(instance.layout.layers, dtype=bool)

    back = cheapest_gpu_relabelling(instance.layout, relabelled, topology, counted_L=every_layer)

    assert diff(instance.layout, with_gpus_relabelled(relabelled, back)).moved_slots == 0
