"""The search's own load evaluation against tokens sent one by one, and against the ruler."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.problem import LocalScope, Problem
from placement.score import loads_WLG, score
from placement.solver.instance import Instance, instance_of
from placement.solver.placing import Placing, SwapList
from placement.solver.plans import plans_of
from placement.topology import Topology
from tests.placement.bounds.brute_force import PARTS, serve_token
from tests.placement.solver.judging import planned_dispatch
from tests.placement.solver.problems import problems, random_layout


def hosts_of(layout: Layout, problem: Problem) -> np.ndarray:
    return layout.replicas_LEG[list(problem.demand.moe_layers)] > 0


def slots_of(layout: Layout, problem: Problem) -> np.ndarray:
    layers = list(problem.demand.moe_layers)
    rows_LP = layout.slot_to_expert_LP[layers].astype(np.int64)
    return rows_LP.reshape(len(layers), layout.gpus, layout.slots_per_gpu)


def loads_of_layout(instance: Instance, hosts_LEG: np.ndarray) -> np.ndarray:
    """Ask for every layer and expert at once and add up, float64 [W, L, G]."""
    layer_K, expert_K = np.divmod(np.arange(instance.layers * instance.experts), instance.experts)
    shares_WKG = instance.loads_of(layer_K, expert_K, hosts_LEG[layer_K, expert_K])
    return shares_WKG.reshape(instance.windows, instance.layers, instance.experts, instance.gpus).sum(axis=2)


def ruler_loads(problem: Problem, layout: Layout) -> np.ndarray:
    """The ruler's loads over the mean load of their layer and window, 0 where there is no demand."""
    tokens_WLG = loads_WLG(layout, problem.demand, problem.topology, dispatch=planned_dispatch(problem))
    tokens_WLG = tokens_WLG[:, list(problem.demand.moe_layers)]
    mean_WL1 = tokens_WLG.mean(axis=2, keepdims=True)
    return np.divide(tokens_WLG, mean_WL1, out=np.zeros_like(tokens_WLG), where=mean_WL1 > 0)


@settings(max_examples=150)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_loads_are_the_rulers(problem: Problem, seed: int) -> None:
    layout = random_layout(problem, np.random.default_rng(seed))
    ours = loads_of_layout(instance_of(problem), hosts_of(layout, problem))
    assert ours == pytest.approx(ruler_loads(problem, layout), rel=1e-9, abs=1e-12)


@settings(max_examples=150)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_figures_are_the_rulers(problem: Problem, seed: int) -> None:
    """Imbalance by window and local share of the scope."""
    layout = random_layout(problem, np.random.default_rng(seed))
    plans = plans_of(instance_of(problem), slots_of(layout, problem))
    metrics = score(layout, problem.demand, problem.topology, dispatch=planned_dispatch(problem))
    ours = dict(zip(problem.demand.window_names, plans.peak_WL.sum(axis=1).tolist(), strict=True))
    theirs = {window.name: window.imbalance for window in metrics.windows}
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs)
    assert not any(value for name, value in ours.items() if name not in theirs)
    assert plans.imbalance == pytest.approx(metrics.worst_window.imbalance)
    if problem.dispatch is not Dispatch.EVEN:
        share = metrics.local_node if problem.local_scope is LocalScope.NODE else metrics.local_gpu
        assert plans.local == pytest.approx(share)


SMALL = ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (6, 2), (6, 3), (8, 2))
"""GPUs and nodes; host counts up to 8 divide a token's parts."""


@pytest.mark.parametrize(("gpus", "nodes"), SMALL)
@pytest.mark.parametrize("sources", ["measured", "uniform"])
@pytest.mark.parametrize("dispatch", [Dispatch.NEAREST_DYNAMIC, Dispatch.EVEN])
def test_loads_are_those_of_tokens_sent_one_by_one(gpus: int, nodes: int, sources: str, dispatch: Dispatch) -> None:
    """Every host set of small machines and random ones of larger machines, 5 experts at a time."""
    topology = Topology(gpus, nodes)
    generator = np.random.default_rng(gpus * 10 + nodes)
    experts = 5
    shape = (2, 1, gpus if sources == "measured" else 1, experts)
    demand = Demand(generator.integers(0, 4, shape), sources, ("a", "b"))  # type: ignore[arg-type]
    instance = instance_of(Problem(demand, topology, experts, dispatch=dispatch))
    mean_W = demand.tokens_WLE[:, 0].sum(axis=1) / gpus
    every_set = [[bool(number >> gpu & 1) for gpu in range(gpus)] for number in range(1, 2**gpus)]
    if len(every_set) > 40:
        every_set = [every_set[index] for index in generator.choice(len(every_set), 40, replace=False)]
    for hosts_G in every_set:
        hosts_KG = np.tile(np.array(hosts_G), (experts, 1))
        ours = instance.loads_of(np.zeros(experts, dtype=np.int64), np.arange(experts), hosts_KG)
        for expert in range(experts):
            tokens_WG = sent_one_by_one(demand, topology, dispatch, expert, np.flatnonzero(hosts_G).tolist())
            assert ours[:, expert] == pytest.approx(tokens_WG / mean_W[:, None])


def sent_one_by_one(
    demand: Demand, topology: Topology, dispatch: Dispatch, expert: int, hosts: list[int]
) -> np.ndarray:
    """Tokens of one expert that every GPU computes, by window; a uniform count is split over all sources."""
    uniform = demand.sources == "uniform"
    parts_WG = np.zeros((demand.windows, topology.gpus))
    for window in range(demand.windows):
        for home in range(topology.gpus):
            count = int(demand.tokens_WLSE[window, 0, 0 if uniform else home, expert])
            for gpu, parts in serve_token(home, tuple(hosts), topology, dispatch, random.Random(0)).items():
                parts_WG[window, gpu] += parts * count
    return parts_WG / PARTS / (topology.gpus if uniform else 1)


@settings(max_examples=60)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_loads_stay_right_while_replicas_move(problem: Problem, seed: int) -> None:
    """After random swaps and replacements the kept loads are those of the layout it has become."""
    generator = np.random.default_rng(seed)
    instance = instance_of(problem)
    placing = Placing(instance, slots_of(random_layout(problem, generator), problem))
    for _ in range(6):
        swap_at_random(placing, generator)
        replace_at_random(placing, generator)
    fresh = Placing(instance, placing.slots_LGP)
    assert placing.loads_WLG == pytest.approx(fresh.loads_WLG, abs=1e-9)
    assert (placing.hosts_LEG == fresh.hosts_LEG).all()
    assert (placing.replicas_LE == fresh.replicas_LE).all()
    assert placing.loads_WLG == pytest.approx(loads_of_layout(instance, placing.hosts_LEG), abs=1e-9)


def swap_at_random(placing: Placing, generator: np.random.Generator) -> None:
    layers, gpus, room = placing.slots_LGP.shape
    if gpus < 2:
        return
    layer = int(generator.integers(layers))
    gpu_a, gpu_b = generator.choice(gpus, 2, replace=False).tolist()
    slot_a, slot_b = generator.integers(0, room, 2).tolist()
    expert_a, expert_b = placing.slots_LGP[layer, gpu_a, slot_a], placing.slots_LGP[layer, gpu_b, slot_b]
    if not placing.hosts_LEG[layer, expert_a, gpu_b] and not placing.hosts_LEG[layer, expert_b, gpu_a]:
        placing.swap(SwapList(*(np.array([each]) for each in (layer, gpu_a, slot_a, gpu_b, slot_b))))


def replace_at_random(placing: Placing, generator: np.random.Generator) -> None:
    layers, gpus, room = placing.slots_LGP.shape
    layer, gpu, slot = (int(generator.integers(size)) for size in (layers, gpus, room))
    leaving = placing.slots_LGP[layer, gpu, slot]
    lacking = np.flatnonzero(~placing.hosts_LEG[layer, :, gpu])
    if lacking.size and placing.replicas_LE[layer, leaving] > 1:
        placing.replace(*(np.array([each]) for each in (layer, gpu, slot, int(generator.choice(lacking)))))
