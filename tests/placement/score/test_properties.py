"""What holds for every layout and demand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.relabel import with_gpus_relabelled
from placement.score import loads_WLG, score
from placement.topology import Topology
from tests.placement.instances import instances

# ------------------------------------------------------------------------------------------------ token by token


def _replicas_in_reach(layout: Layout, topology: Topology, layer: int, source: int, expert: int) -> list[int]:
    """Return the GPUs among which one token may end, one entry per slot, by reading the rule off the map."""
    slots_per_gpu = layout.slots // layout.gpus
    gpu_of_slot = [
        slot // slots_per_gpu for slot, held in enumerate(layout.slot_to_expert_LP[layer].tolist()) if held == expert
    ]
    if source in gpu_of_slot:
        return [source]
    gpus_per_node = topology.gpus // topology.nodes
    near = [gpu for gpu in gpu_of_slot if gpu // gpus_per_node == source // gpus_per_node]
    if near and len(near) < len(gpu_of_slot):
        return near[:1]
    return gpu_of_slot


def _token_by_token(layout: Layout, demand: Demand, topology: Topology) -> tuple[np.ndarray, Fraction]:
    """Send every token on its own, in fractions; return loads [W, L, G] and the share that stays on its GPU."""
    loads = np.full((demand.windows, demand.layers, topology.gpus), Fraction(0), dtype=object)
    stayed = Fraction(0)
    for (window, layer, row, expert), tokens in np.ndenumerate(demand.tokens_WLSE):
        sources = [row] if demand.sources == "measured" else range(topology.gpus)
        for source in sources:
            reach = _replicas_in_reach(layout, topology, layer, source, expert)
            for _ in range(int(tokens)):
                for gpu in reach:
                    part = Fraction(1, len(reach) * len(sources))
                    loads[window, layer, gpu] += part
                    stayed += part if gpu == source else 0
    return loads, stayed / demand.total_tokens


@given(instances())
@settings(max_examples=40, deadline=None)
def test_loads_and_local_share_are_those_of_single_tokens(instance):
    few = replace(instance.demand, tokens_WLSE=np.minimum(instance.demand.tokens_WLSE, 3))

    loads, stayed = _token_by_token(instance.layout, few, instance.topology)
    metrics = score(instance.layout, few, instance.topology, dispatch=Dispatch.NEAREST_DYNAMIC)

    np.testing.assert_allclose(
        loads_WLG(instance.layout, few, instance.topology, dispatch=Dispatch.NEAREST_DYNAMIC), loads.astype(float)
    )
    assert metrics.local_gpu == pytest.approx(float(stayed))
    mean_of = [[sum(loads_G) / len(loads_G) for loads_G in loads_LG] for loads_LG in loads]
    assert metrics.imbalance == pytest.approx(float(loads.max(axis=2).sum() / np.sum(mean_of)))


# ------------------------------------------------------------------------------------------------------ properties


@given(instances(), st.sampled_from(Dispatch))
@settings(max_examples=80, deadline=None)
def test_loads_add_up_to_the_demand(instance, dispatch):
    loads = loads_WLG(instance.layout, instance.demand, instance.topology, dispatch=dispatch)

    np.testing.assert_allclose(loads.sum(axis=2), instance.demand.tokens_WLE.sum(axis=2))
    assert (loads >= 0).all()


@given(instances(), st.sampled_from(Dispatch), st.floats(0.5, 4))
@settings(max_examples=80, deadline=None)
def test_figures_stay_in_their_ranges(instance, dispatch, capacity_factor):
    metrics = score(
        instance.layout, instance.demand, instance.topology, dispatch=dispatch, capacity_factor=capacity_factor
    )

    most = instance.topology.gpus * (1 + 1e-12)
    assert 1 <= metrics.imbalance <= metrics.worst_layer.imbalance * (1 + 1e-12) <= most
    assert metrics.imbalance <= metrics.worst_window.imbalance * (1 + 1e-12) <= most
    assert metrics.balancedness == 1 / metrics.imbalance
    assert 1 / most <= metrics.sglang_balancedness <= 1 + 1e-12
    assert 0 <= metrics.rerouted <= metrics.overflow_share <= 1
    assert metrics.overflow_share == pytest.approx(metrics.rerouted + metrics.dropped, abs=1e-12)
    if dispatch is not Dispatch.EVEN:
        assert 0 <= metrics.local_gpu <= metrics.local_node + 1e-12 <= 1 + 2e-12


@given(instances(), st.sampled_from(Dispatch))
@settings(max_examples=40, deadline=None)
def test_nothing_overflows_when_one_gpu_may_take_everything(instance, dispatch):
    metrics = score(
        instance.layout,
        instance.demand,
        instance.topology,
        dispatch=dispatch,
        capacity_factor=instance.topology.gpus,
    )

    assert metrics.overflow_share == 0


@given(instances(most_nodes=1), st.sampled_from([Dispatch.NEAREST_DYNAMIC, Dispatch.EVEN]), st.randoms())
@settings(max_examples=60, deadline=None)
def test_labels_of_gpus_do_not_matter_on_one_node(instance, dispatch, order):
    labels = order.sample(range(instance.topology.gpus), k=instance.topology.gpus)
    tokens = instance.demand.tokens_WLSE.copy()
    if instance.demand.sources == "measured":
        tokens[:, :, labels] = instance.demand.tokens_WLSE
    demand = replace(instance.demand, tokens_WLSE=tokens)

    before = score(instance.layout, instance.demand, instance.topology, dispatch=dispatch)
    after = score(with_gpus_relabelled(instance.layout, labels), demand, instance.topology, dispatch=dispatch)

    assert after.imbalance == pytest.approx(before.imbalance)
    assert after.local_gpu == pytest.approx(before.local_gpu)
    assert after.overflow_share == pytest.approx(before.overflow_share, abs=1e-9)


@given(instances())
@settings(max_examples=40, deadline=None)
def test_uniform_demand_equals_measured_demand_with_equal_sources(instance):
    uniform = instance.demand.with_uniform_sources()
    gpus = instance.topology.gpus
    spread = np.repeat(uniform.tokens_WLSE, gpus, axis=2)
    measured = Demand(spread, "measured", uniform.window_names)

    a = score(instance.layout, uniform, instance.topology, dispatch=Dispatch.NEAREST_STATIC)
    b = score(instance.layout, measured, instance.topology, dispatch=Dispatch.NEAREST_STATIC)

    assert a.imbalance == pytest.approx(b.imbalance)
    assert a.local_gpu == pytest.approx(b.local_gpu)
    assert a.local_node == pytest.approx(b.local_node)


@given(instances())
@settings(max_examples=40, deadline=None)
def test_on_one_gpu_everything_is_local_and_balanced(instance):
    layout = Layout(
        np.tile(np.arange(instance.demand.experts), (instance.demand.layers, 1)), 1, instance.demand.experts
    )

    metrics = score(layout, instance.demand.with_uniform_sources(), Topology(1), dispatch=Dispatch.NEAREST_DYNAMIC)

    assert (metrics.local_gpu, metrics.imbalance, metrics.overflow_share) == (1, 1, 0)


@given(instances(), st.sampled_from(Dispatch))
@settings(max_examples=40, deadline=None)
def test_the_whole_is_the_weighted_mean_of_its_windows_and_layers(instance, dispatch):
    metrics = score(instance.layout, instance.demand, instance.topology, dispatch=dispatch)

    tokens = [window.tokens for window in metrics.windows]
    assert sum(tokens) == instance.demand.total_tokens
    assert np.average([window.imbalance for window in metrics.windows], weights=tokens) == pytest.approx(
        metrics.imbalance
    )
    if dispatch is not Dispatch.EVEN:
        assert np.average([window.local_gpu for window in metrics.windows], weights=tokens) == pytest.approx(
            metrics.local_gpu
        )
        by_layer = [instance.demand.tokens_WLE[:, layer.layer].sum() for layer in metrics.layers]
        assert np.average([layer.local_gpu for layer in metrics.layers], weights=by_layer) == pytest.approx(
            metrics.local_gpu
        )
