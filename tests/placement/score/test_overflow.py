"""Overflow, and what other replicas can take of it: by hand and against another flow."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch, dispatch_table
from placement.layout import Layout, layout_from_hosts
from placement.metrics import Metrics
from placement.score import loads_WLG, score
from placement.topology import Topology
from tests.placement.instances import Instance, instances


def _score(layout: Layout, counts: list[list[int]], *, dispatch: Dispatch, capacity_factor: float = 1.25):
    topology = Topology(layout.gpus)
    return score(layout, Demand.uniform(counts), topology, dispatch=dispatch, capacity_factor=capacity_factor)


def test_load_at_the_cap_does_not_overflow():
    layout = Layout(np.arange(4)[None], gpus=4, experts=4)

    metrics = _score(layout, [[125, 75, 100, 100]], dispatch=Dispatch.EVEN)

    assert (metrics.overflow_share, metrics.rerouted, metrics.dropped) == (0, 0, 0)


def test_load_above_the_cap_is_dropped_without_other_replicas():
    layout = Layout(np.arange(4)[None], gpus=4, experts=4)

    metrics = _score(layout, [[160, 40, 100, 100]], dispatch=Dispatch.EVEN)

    assert metrics.overflow_share == pytest.approx(35 / 400)
    assert (metrics.rerouted, metrics.dropped) == (0, pytest.approx(35 / 400))


def test_overflow_goes_to_the_other_replica():
    # Even: expert 0 gives 40 to both its GPUs, expert 1 fills GPU 0 to 90; GPU 1 has room for all that is above.
    layout = layout_from_hosts([[[0, 1], [0, 2]]], experts=3)

    metrics = _score(layout, [[80, 50, 10]], dispatch=Dispatch.EVEN, capacity_factor=1.0)

    assert metrics.overflow_share == pytest.approx(20 / 140)
    assert metrics.rerouted == pytest.approx(20 / 140)
    assert metrics.dropped == pytest.approx(0)


def test_no_more_is_rerouted_than_the_overflowing_gpu_has_of_the_shared_expert():
    # GPU 0 overflows by 38, but only its 2 tokens of expert 0 have a second place.
    layout = layout_from_hosts([[[0, 1], [0, 2]]], experts=3)

    metrics = _score(layout, [[4, 88, 12]], dispatch=Dispatch.EVEN, capacity_factor=1.0)

    assert metrics.overflow_share == pytest.approx(38 / 104)
    assert metrics.rerouted == pytest.approx(2 / 104)
    assert metrics.dropped == pytest.approx(36 / 104)


def test_no_more_is_rerouted_than_the_other_host_has_room_for():
    # Mean 50, cap 50: GPU 0 has 90. Expert 0's other host, GPU 1, is at 44: room for 6.
    layout = layout_from_hosts([[[0, 1], [0, 2], [3, 4]]], experts=5)

    metrics = _score(layout, [[80, 50, 4, 16, 0]], dispatch=Dispatch.EVEN, capacity_factor=1.0)

    assert metrics.overflow_share == pytest.approx(40 / 150)
    assert metrics.rerouted == pytest.approx(6 / 150)


def test_rerouting_takes_one_hop_only():
    # GPU 2 has room, but holds no expert of GPU 0. Passing expert 0 to GPU 1 and expert 2 on to GPU 2 is not one hop.
    layout = layout_from_hosts([[[0, 1], [0, 2], [2, 3]]], experts=4)

    metrics = _score(layout, [[60, 60, 60, 0]], dispatch=Dispatch.EVEN, capacity_factor=1.0)

    np.testing.assert_allclose(
        loads_WLG(layout, Demand.uniform([[60, 60, 60, 0]]), Topology(3), dispatch=Dispatch.EVEN), [[[90, 60, 30]]]
    )
    assert metrics.overflow_share == pytest.approx(30 / 180)
    assert metrics.rerouted == 0


def test_a_replica_that_dispatch_does_not_use_can_still_take_overflow():
    # Measured sources: GPU 0 keeps all tokens of expert 0; GPU 1 holds it too, idle.
    layout = layout_from_hosts([[[0], [0]]], experts=1)
    demand = Demand(np.array([[[[10], [0]]]]), "measured", ("w",))

    metrics = score(layout, demand, Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC, capacity_factor=1.0)

    assert metrics.overflow_share == pytest.approx(0.5)
    assert metrics.rerouted == pytest.approx(0.5)


def test_caps_hold_per_window():
    # Merged, both GPUs are even; each window alone is far above its cap.
    layout = Layout(np.arange(2)[None], gpus=2, experts=2)
    demand = Demand.uniform([[[10, 0]], [[0, 10]]])

    metrics = score(layout, demand, Topology(2), dispatch=Dispatch.EVEN)

    assert metrics.overflow_share == pytest.approx(2 * (10 - 6.25) / 20)
    assert [window.overflow_share for window in metrics.windows] == pytest.approx([0.375, 0.375])


def test_the_unit_of_tokens_does_not_matter():
    layout = layout_from_hosts([[[0, 1], [0, 2], [1, 3]]], experts=4)
    small, large = [[7, 90, 4, 1]], [[7 * 10**15, 90 * 10**15, 4 * 10**15, 10**15]]

    a = _score(layout, small, dispatch=Dispatch.EVEN)
    b = _score(layout, large, dispatch=Dispatch.EVEN)

    assert a.rerouted > 0
    assert (a.overflow_share, a.rerouted) == (pytest.approx(b.overflow_share), pytest.approx(b.rerouted))


def _slow_rerouted(instance: Instance, dispatch: Dispatch, capacity_factor: float) -> float:
    """Return the rerouted tokens by a flow drawn move by move: (expert, from GPU) to every other host with room."""
    table = dispatch_table(instance.layout, instance.topology, dispatch=dispatch)
    loads = loads_WLG(instance.layout, instance.demand, instance.topology, dispatch=dispatch)
    rerouted = 0.0
    for window, layer in np.ndindex(loads.shape[:2]):
        tokens_SE = instance.demand.tokens_WLSE[window, layer]
        share_SEG = table.share_SEG(layer)
        if instance.demand.sources == "uniform":
            tokens_SE = np.repeat(tokens_SE, len(share_SEG), axis=0) / len(share_SEG)
        served_EG = np.einsum("se,seg->eg", tokens_SE, share_SEG)
        cap = capacity_factor * loads[window, layer].mean()
        graph = nx.DiGraph()
        graph.add_nodes_from(["source", "sink"])
        for gpu, load in enumerate(loads[window, layer]):
            if load > cap * (1 + 1e-9):
                graph.add_edge("source", ("over", gpu), capacity=load - cap)
            else:
                graph.add_edge(("room", gpu), "sink", capacity=max(cap - load, 0.0))
        for expert, gpu in np.argwhere(served_EG > 0):
            graph.add_edge(("over", gpu), ("moves", expert, gpu), capacity=served_EG[expert, gpu])
            for other in np.flatnonzero(instance.layout.replicas_LEG[layer, expert]):
                if other != gpu:
                    graph.add_edge(("moves", expert, gpu), ("room", other))
        rerouted += nx.maximum_flow_value(graph, "source", "sink")
    return rerouted


@given(instances(), st.sampled_from(Dispatch), st.sampled_from([0.8, 1.0, 1.1, 1.25, 1.5]))
@settings(max_examples=60, deadline=None)
def test_rerouted_is_the_most_that_single_moves_can_take(instance, dispatch, capacity_factor):
    metrics = score(
        instance.layout, instance.demand, instance.topology, dispatch=dispatch, capacity_factor=capacity_factor
    )

    expected = _slow_rerouted(instance, dispatch, capacity_factor) / instance.demand.total_tokens
    assert metrics.rerouted == pytest.approx(expected, abs=1e-7)


@given(instances(), st.sampled_from(Dispatch), st.sampled_from([0.5, 1.0, 1.1, 1.3]))
@settings(max_examples=60, deadline=None)
def test_every_capacity_factor_is_judged_as_if_it_were_the_only_one(instance, dispatch, capacity_factor):
    def judged(factor: float) -> Metrics:
        return score(instance.layout, instance.demand, instance.topology, dispatch=dispatch, capacity_factor=factor)

    metrics = judged(capacity_factor)

    factors = [at.capacity_factor for at in metrics.capacity]
    assert factors == sorted({1.0, 1.25, 1.5, 2.0, capacity_factor})
    for at in metrics.capacity:
        alone = judged(at.capacity_factor)
        assert (at.overflow_share, at.rerouted, at.dropped) == (alone.overflow_share, alone.rerouted, alone.dropped)


@given(instances(), st.sampled_from(Dispatch))
@settings(max_examples=60, deadline=None)
def test_more_capacity_never_overflows_or_drops_more(instance, dispatch):
    metrics = score(instance.layout, instance.demand, instance.topology, dispatch=dispatch)

    for less, more in pairwise(metrics.capacity):
        assert more.overflow_share <= less.overflow_share + 1e-12
        assert more.dropped <= less.dropped + 1e-7


@given(instances(), st.sampled_from(Dispatch), st.sampled_from([0.8, 1.0, 1.1, 1.25]))
@settings(max_examples=60, deadline=None)
def test_a_window_alone_has_the_figures_it_has_among_others(instance, dispatch, capacity_factor):
    metrics = score(
        instance.layout, instance.demand, instance.topology, dispatch=dispatch, capacity_factor=capacity_factor
    )

    for window in metrics.windows:
        demand = instance.demand.pick_windows([instance.demand.window_names.index(window.name)])
        alone = score(instance.layout, demand, instance.topology, dispatch=dispatch, capacity_factor=capacity_factor)
        assert window.overflow_share == pytest.approx(alone.overflow_share)
        assert (window.rerouted, window.dropped) == pytest.approx((alone.rerouted, alone.dropped), abs=1e-9)
