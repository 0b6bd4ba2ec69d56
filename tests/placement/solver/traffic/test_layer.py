"""Copies, loads and steps of one layer: what the search believes against the ruler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.score import Copies, count_copies
from placement.solver.instance import instance_of
from placement.solver.starts import hosts_of_slots, slots_of_hosts
from placement.solver.traffic.copies import LayerCopies
from placement.solver.traffic.layer_tokens import layer_tokens
from placement.solver.traffic.load import LayerLoad
from placement.solver.traffic.steps import hosts_after, is_possible, likely_steps
from placement.solver.traffic.worth import worth_of_steps
from placement.topology import Topology
from tests.placement.solver.traffic.problems import grouped_tokens, problem_of


@st.composite
def layers(draw: st.DrawFn, *, most_nodes: int = 2):
    """Draw one layer's tokens and hosts without doubles on a GPU."""
    nodes = draw(st.integers(1, most_nodes))
    gpus = nodes * draw(st.integers(1 if nodes > 1 else 2, 3))
    experts = draw(st.integers(gpus, 8))
    slots = min(experts, -(-experts // gpus) + draw(st.integers(0, 2)))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    homes = gpus if draw(st.booleans()) else 0
    tokens = grouped_tokens(
        layers=1, experts=experts, top_k=min(3, experts), count=30, groups=3, homes=homes, seed=seed
    )
    while True:
        held = [generator.permutation(experts)[:slots] for _ in range(gpus)]
        if len(np.unique(np.concatenate(held))) == experts:
            break
        slots = min(experts, slots + 1)
    hosts_EG = hosts_of_slots(np.sort(np.stack(held))[None], experts=experts)[0]
    has_replicas = gpus * slots > experts
    topology = Topology(gpus, nodes)
    of_layer = layer_tokens(
        tokens.experts_LTK[1], tokens.home_T, experts=experts, gpus=gpus, nodes=nodes, has_replicas=has_replicas
    )
    return tokens, of_layer, hosts_EG, topology, has_replicas, generator


def _ruled(tokens, hosts_EG, topology: Topology) -> float:
    return _ruled_copies(tokens, hosts_EG, topology).gpus_per_token


def _ruled_copies(tokens, hosts_EG, topology: Topology) -> Copies:
    row = slots_of_hosts(hosts_EG[None]).reshape(1, -1)
    layout = Layout(np.tile(row, (tokens.layers, 1)), gpus=topology.gpus, experts=tokens.experts)
    found = count_copies({"it": layout}, [tokens], topology, dispatch=Dispatch.NEAREST_DYNAMIC, windows=1)
    return found["it"]


@given(layers())
@settings(max_examples=80, deadline=None)
def test_copies_are_those_of_the_ruler(layer):
    tokens, of_layer, hosts_EG, topology, has_replicas, _ = layer
    copies = LayerCopies(of_layer, hosts_EG, has_replicas=has_replicas)
    assert copies.copies == pytest.approx(_ruled(tokens, hosts_EG, topology), abs=1e-5)
    ruled = _ruled_copies(tokens, hosts_EG, topology)
    np.testing.assert_allclose(copies.copies_SG, ruled.gpu_WLSG[0, 1] / ruled.tokens_WL[0, 1], atol=1e-5)


def _load(tokens, topology, hosts_EG) -> LayerLoad:
    slots = int(hosts_EG.sum()) // topology.gpus
    instance = instance_of(problem_of(tokens, gpus=topology.gpus, nodes=topology.nodes, slots_per_gpu=slots))
    return LayerLoad(instance, hosts_EG, ceiling=1.0)


@given(layers())
@settings(max_examples=60, deadline=None)
def test_steps_change_what_they_are_said_to(layer):
    tokens, of_layer, hosts_EG, topology, has_replicas, generator = layer
    copies = LayerCopies(of_layer, hosts_EG, has_replicas=has_replicas)
    load = _load(tokens, topology, hosts_EG)
    for _ in range(4):
        worth = worth_of_steps(copies.exposed_ESG(), copies.hosts_EG)
        steps = likely_steps(worth, copies.hosts_EG, load, price=0.0, most=50)
        if not len(steps.a_X):
            break
        step = steps.step(int(generator.integers(len(steps.a_X))))
        assert is_possible(step, copies.hosts_EG)
        before, experts = copies.copies, [step.a, step.b]
        hosts_2G = hosts_after(step, copies.hosts_EG)
        change = copies.change(experts, hosts_2G)
        assert copies.copies == before  # asking changes nothing
        copies.apply(experts, hosts_2G, change)
        share_W2G, load_WG = load.with_hosts(experts, hosts_2G)
        load.apply(experts, share_W2G, load_WG)
        assert copies.copies - before == pytest.approx(change.copies, abs=1e-5)
        assert copies.copies == pytest.approx(_ruled(tokens, copies.hosts_EG, topology), abs=1e-5)
        np.testing.assert_allclose(load.load_WG, _load(tokens, topology, copies.hosts_EG).load_WG, atol=1e-12)
        assert (copies.hosts_EG.sum(axis=0) == hosts_EG.sum(axis=0)).all()
        assert copies.hosts_EG.any(axis=1).all()


@given(layers(most_nodes=1))
@settings(max_examples=60, deadline=None)
def test_on_one_node_the_worth_of_changing_one_expert_is_exact(layer):
    _, of_layer, hosts_EG, _, _, _ = layer
    copies = LayerCopies(of_layer, hosts_EG, has_replicas=True)
    worth = worth_of_steps(copies.exposed_ESG(), hosts_EG)
    for expert, one in np.argwhere(hosts_EG).tolist():
        row_G = hosts_EG[expert].copy()
        row_G[one] = False
        if row_G.any():
            assert worth.drop_EG[expert, one] == pytest.approx(copies.change([expert], row_G[None]).copies, abs=1e-6)
        else:
            assert np.isinf(worth.drop_EG[expert, one])
        for other in np.flatnonzero(~hosts_EG[expert]).tolist():
            moved_G = row_G.copy()
            moved_G[other] = True
            found = copies.change([expert], moved_G[None]).copies
            assert worth.move_EGG[expert, one, other] == pytest.approx(found, abs=1e-6)
            more_G = hosts_EG[expert].copy()
            more_G[other] = True
            assert worth.add_EG[expert, other] == pytest.approx(copies.change([expert], more_G[None]).copies, abs=1e-6)


def test_thinned_tokens_stand_for_all():
    tokens = grouped_tokens(layers=1, count=3000)
    of_layer = layer_tokens(tokens.experts_LTK[1], None, experts=16, gpus=4, nodes=1, has_replicas=False)
    hosts_EG = np.eye(4, dtype=bool)[np.arange(16) % 4]
    full = LayerCopies(of_layer, hosts_EG, has_replicas=False).copies
    some = LayerCopies(of_layer.thinned(1500), hosts_EG, has_replicas=False).copies
    assert of_layer.thinned(1500).tokens == 1500
    assert some == pytest.approx(full, rel=0.05)
