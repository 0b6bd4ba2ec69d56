"""Copies of tokens: examples by hand, and every token sent on its own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.dispatch import Dispatch, dispatch_table
from placement.errors import BadOption, BadTokens, SlotCountMismatch
from placement.layout import Layout, layout_from_hosts
from placement.score import count_copies, score_tokens
from placement.score.active import active_experts_ZLG
from placement.score.token_metrics import ratio_interval
from placement.token_sample import take_sample
from placement.tokens import NO_EXPERT, Tokens
from placement.topology import Topology
from tests.placement.instances import layouts, topologies
from tests.placement.token_traces import cut, some_tokens

DYNAMIC, STATIC, EVEN = Dispatch.NEAREST_DYNAMIC, Dispatch.NEAREST_STATIC, Dispatch.EVEN


def _copies(layout, tokens, topology, *, dispatch=DYNAMIC, windows=1):
    return count_copies({"it": layout}, [tokens], topology, dispatch=dispatch, windows=windows)["it"]


# ------------------------------------------------------------------------------------------------------- by hand


def test_experts_on_one_gpu_cost_one_copy():
    layout = layout_from_hosts([[[0, 1], [2, 3]]], experts=4)
    together = some_tokens([[[2, 3]]], experts=4, home=[0])
    apart = some_tokens([[[1, 3]]], experts=4, home=[0])
    home = some_tokens([[[0, 1]]], experts=4, home=[0])
    for tokens, copies in ((together, 1), (apart, 1), (home, 0)):
        assert _copies(layout, tokens, Topology(2)).gpus_per_token == copies


def test_uniform_homes_save_the_share_that_lives_there():
    # m distinct GPUs of G cost m - m / G.
    layout = layout_from_hosts([[[0], [1], [2], [3]]], experts=4)
    tokens = some_tokens([[[0, 1, 2]]], experts=4)
    copies = _copies(layout, tokens, Topology(4))
    assert copies.gpus_per_token == pytest.approx(3 - 3 / 4)
    np.testing.assert_allclose(
        copies.gpu_WLSG[0, 0], np.array([[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]) / 4
    )
    np.testing.assert_allclose(copies.sent_WLG[0, 0], np.array([2, 2, 2, 3]) / 4)
    np.testing.assert_allclose(copies.received_WLG[0, 0], np.array([3, 3, 3, 0]) / 4)


def test_replicas_drawn_at_random_meet_by_chance():
    # Experts 0 and 1 are both on GPUs 0 and 1; a token of GPU 2 draws one replica of each.
    layout = layout_from_hosts([[[0, 1], [0, 1], [2, 3]]], experts=4)
    tokens = some_tokens([[[0, 1]]], experts=4, home=[2])
    copies = _copies(layout, tokens, Topology(3))
    # Both on the same GPU with probability 1/2: 1.5 copies on average, 3/4 to each.
    np.testing.assert_allclose(copies.gpu_WLSG[0, 0, 2], [0.75, 0.75, 0])
    assert copies.gpus_per_token == pytest.approx(1.5)


def test_nodes_are_counted_once_however_many_of_their_gpus_are_needed():
    layout = layout_from_hosts([[[0], [1], [2], [3]]], experts=4)
    tokens = some_tokens([[[1, 2, 3]]], experts=4, home=[0])
    copies = _copies(layout, tokens, Topology(4, 2))
    assert (copies.gpus_per_token, copies.nodes_per_token) == (3, 1)
    np.testing.assert_allclose(copies.node_WLSN[0, 0, 0], [0, 1])


def test_windows_and_layers_stand_apart_and_dense_layers_do_not_count():
    layout = layout_from_hosts([[[0], [1]]] * 3, experts=2)
    topk = [[[NO_EXPERT]] * 3, [[0], [1], [1]], [[1], [1], [NO_EXPERT]]]
    tokens = some_tokens(topk, experts=2, home=[0, 0, 1], window=[0, 1, 1])
    copies = _copies(layout, tokens, Topology(2), windows=2)
    np.testing.assert_array_equal(copies.gpu_WLSG.sum(axis=(2, 3)), [[0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(copies.tokens_WL, [[0, 1, 1], [0, 2, 1]])
    assert copies.gpus_per_token == pytest.approx(3 / 5)


def test_what_cannot_be_counted_is_refused():
    layout = layout_from_hosts([[[0], [1]]], experts=2)
    tokens = some_tokens([[[0]]], experts=2)
    with pytest.raises(BadTokens, match="under even dispatch"):
        _copies(layout, tokens, Topology(2), dispatch=EVEN)
    with pytest.raises(BadTokens, match="1 layers x 3 experts, the layout of 1 x 2"):
        _copies(layout, replace(tokens, experts=3), Topology(2))
    with pytest.raises(BadTokens, match="lives on GPU 2"):
        _copies(layout, some_tokens([[[0]]], experts=2, home=[2]), Topology(2))
    with pytest.raises(BadTokens, match="in window 1; there are windows 0 to 0"):
        _copies(layout, some_tokens([[[0]]], experts=2, window=[1]), Topology(2))
    with pytest.raises(BadTokens, match="no token of the trace has an expert"):
        _copies(layout, some_tokens([[[NO_EXPERT]]], experts=2), Topology(2))
    with pytest.raises(SlotCountMismatch):
        _copies(layout, tokens, Topology(4))


# --------------------------------------------------------------------------------------------------- token by token


def _send(layout: Layout, topology: Topology, source: int, layer: int, experts: list[int], dispatch: Dispatch):
    """Yield every way in which the engine can send one token, with its probability, by reading the rule off the map."""
    inside = topology.gpus // topology.nodes
    choices = []
    for expert in experts:
        slots = np.flatnonzero(layout.slot_to_expert_LP[layer] == expert)
        gpus = (slots // layout.slots_per_gpu).tolist()
        if dispatch is STATIC:
            table = dispatch_table(layout, topology, dispatch=STATIC)
            gpus = [int(table.slot_LSE[layer, source, expert]) // layout.slots_per_gpu]
        elif source in gpus:
            gpus = [source]
        elif any(gpu // inside == source // inside for gpu in gpus) and not all(
            gpu // inside == source // inside for gpu in gpus
        ):
            gpus = [next(gpu for gpu in gpus if gpu // inside == source // inside)]
        choices.append(gpus)
    ways = list(itertools.product(*choices))
    for way in ways:
        yield set(way), Fraction(1, len(ways))


def _brute_force(layout: Layout, tokens: Tokens, topology: Topology, dispatch: Dispatch):
    gpus, nodes = topology.gpus, topology.nodes
    to_gpu = np.full((tokens.layers, gpus, gpus), Fraction(0), dtype=object)
    to_node = np.full((tokens.layers, gpus, nodes), Fraction(0), dtype=object)
    for layer, token in itertools.product(range(tokens.layers), range(tokens.tokens)):
        experts = [int(e) for e in tokens.experts_LTK[layer, token] if e != NO_EXPERT]
        homes = range(gpus) if tokens.home_T is None else [int(tokens.home_T[token])]
        for home in homes:
            for needed, probability in _send(layout, topology, home, layer, experts, dispatch):
                weight = probability / len(homes)
                for gpu in needed - {home}:
                    to_gpu[layer, home, gpu] += weight
                for node in {gpu // topology.gpus_per_node for gpu in needed} - {home // topology.gpus_per_node}:
                    to_node[layer, home, node] += weight
    return to_gpu.astype(float), to_node.astype(float)


@st.composite
def traces(draw: st.DrawFn) -> tuple[Layout, Tokens, Topology]:
    topology = draw(topologies(most_nodes=3))
    layers, experts = draw(st.integers(1, 3)), draw(st.integers(2, 9))
    layout = draw(layouts(topology=topology, layers=layers, experts=experts))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, k = draw(st.integers(1, 6)), draw(st.integers(1, min(3, experts)))
    topk = np.array([[generator.permutation(experts)[:k] for _ in range(count)] for _ in range(layers)])
    topk = np.where(generator.random(topk.shape) < 0.1, NO_EXPERT, topk)
    topk[0, 0, 0] = 0
    home = generator.integers(0, topology.gpus, count) if draw(st.booleans()) else None
    return layout, some_tokens(topk, experts=experts, home=home, step=generator.integers(0, 2, count)), topology


@given(traces(), st.sampled_from([DYNAMIC, STATIC]), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_copies_are_those_of_single_tokens(trace, dispatch, size):
    layout, tokens, topology = trace
    to_gpu, to_node = _brute_force(layout, tokens, topology, dispatch)

    pieces = cut(tokens, size)
    copies = count_copies({"it": layout}, pieces, topology, dispatch=dispatch, windows=1)["it"]

    np.testing.assert_allclose(copies.gpu_WLSG[0], to_gpu, atol=1e-5)
    np.testing.assert_allclose(copies.node_WLSN[0], to_node, atol=1e-5)


@given(traces(), st.sampled_from([DYNAMIC, STATIC]))
@settings(max_examples=60, deadline=None)
def test_a_sample_of_everything_gives_the_same_figures(trace, dispatch):
    layout, tokens, topology = trace
    everything = score_tokens({"it": layout}, [tokens], topology, dispatch=dispatch)["it"]
    sampled = score_tokens({"it": layout}, [tokens], topology, dispatch=dispatch, sample_tokens=tokens.tokens)["it"]
    assert sampled.gpus_per_token == pytest.approx(everything.gpus_per_token, abs=1e-5)
    assert sampled.nodes_per_token == pytest.approx(everything.nodes_per_token, abs=1e-5)
    assert sampled.token_basis == everything.token_basis
    assert sampled.active_experts == everything.active_experts


# ----------------------------------------------------------------------------------------------------- active experts


def _active(layout: Layout, tokens: Tokens, topology: Topology, dispatch: Dispatch) -> np.ndarray:
    """Return the expected distinct experts on every GPU in one step, over all homes and all draws."""
    expected = np.zeros((tokens.layers, topology.gpus))
    homes = range(topology.gpus)
    for layer in range(tokens.layers):
        missed = {}
        for token in range(tokens.tokens):
            for expert in tokens.experts_LTK[layer, token]:
                if expert == NO_EXPERT:
                    continue
                hit = np.zeros(topology.gpus)
                of = homes if tokens.home_T is None else [int(tokens.home_T[token])]
                for home in of:
                    for needed, probability in _send(layout, topology, home, layer, [int(expert)], dispatch):
                        hit[list(needed)] += float(probability) / len(of)
                missed[int(expert)] = missed.get(int(expert), 1.0) * (1 - hit)
        expected[layer] = sum((1 - miss for miss in missed.values()), np.zeros(topology.gpus))
    return expected


@given(traces(), st.sampled_from([DYNAMIC, STATIC]))
@settings(max_examples=60, deadline=None)
def test_active_experts_are_those_of_single_tokens(trace, dispatch):
    layout, tokens, topology = trace
    one_step = replace(tokens, step_T=np.zeros(tokens.tokens, dtype=np.int64))
    steps = take_sample([one_step], gpus=topology.gpus).steps
    table = dispatch_table(layout, topology, dispatch=dispatch)
    found = active_experts_ZLG(steps, np.array([0]), table)[0]
    np.testing.assert_allclose(found, _active(layout, one_step, topology, dispatch), atol=1e-9)


def test_active_experts_are_of_the_busiest_gpu_and_of_decode_steps():
    layout = layout_from_hosts([[[0, 1], [2, 3]]], experts=4)
    topk = [[[0, 1], [0, 2], [2, 3], [3, 2], [0, 3]]]
    tokens = some_tokens(topk, experts=4, home=[0] * 5, step=[0, 0, 1, 1, 2], phase=[2, 2, 2, 2, 1])
    found = score_tokens({"it": layout}, [tokens], Topology(2), dispatch=DYNAMIC)["it"]
    # Step 0 hits {0, 1} and {2}, step 1 {} and {2, 3}; step 2 prefills.
    assert found.active_experts == 2
    assert (found.token_basis.steps, found.token_basis.recorded_steps) == (2, 3)
    prefill = some_tokens(topk, experts=4, step=[0] * 5, phase=[1] * 5)
    assert score_tokens({"it": layout}, [prefill], Topology(2), dispatch=DYNAMIC)["it"].active_experts is None


def test_under_even_dispatch_nothing_is_sent_but_experts_are_active():
    layout = layout_from_hosts([[[0, 1], [2, 3]]], experts=4)
    tokens = some_tokens([[[0, 1], [0, 2]]], experts=4, step=[0, 0])
    found = score_tokens({"it": layout}, [tokens], Topology(2), dispatch=EVEN)["it"]
    assert (found.gpus_per_token, found.nodes_per_token, found.active_experts) == (None, None, 2)
    sampled = score_tokens({"it": layout}, [tokens], Topology(2), dispatch=EVEN, sample_tokens=9)["it"]
    assert sampled == found


# ---------------------------------------------------------------------------------------------------------- intervals


def test_intervals_hold_the_true_figure_about_as_often_as_they_say():
    generator = np.random.default_rng(0)
    requests, experts = 120, 8
    request = np.repeat(np.arange(requests), generator.integers(2, 12, requests))
    taste = generator.integers(0, experts, requests)[request]
    topk = np.stack([taste, (taste + 1 + generator.integers(0, 7, len(request))) % experts], axis=1)[None]
    tokens = some_tokens(topk, experts=experts, request=request, home=generator.integers(0, 4, len(request)))
    layout = layout_from_hosts([[[0, 1], [2, 3], [4, 5], [6, 7]]], experts=experts)
    true = score_tokens({"it": layout}, [tokens], Topology(4), dispatch=DYNAMIC)["it"].gpus_per_token
    inside = 0
    for seed in range(200):
        found = score_tokens(
            {"it": layout}, [tokens], Topology(4), dispatch=DYNAMIC, sample_tokens=tokens.tokens // 3, seed=seed
        )["it"]
        low, high = found.token_basis.gpus_per_token_interval
        inside += low <= true <= high
    assert 180 <= inside <= 199


def test_few_requests_have_no_interval_and_an_empty_sample_is_refused():
    part, whole = np.array([1.0, 2, 1, 2, 1]), np.full(5, 2.0)
    assert ratio_interval(part[:4], whole[:4], sampled_share=0.5) is None
    assert ratio_interval(part, whole, sampled_share=1.0) is None
    # Ratio 0.7; residuals -0.4, 0.6: variance 0.5 * 5/4 * 1.2 / 100; Student's quantile for 4 is 2.776.
    low, high = ratio_interval(part, whole, sampled_share=0.5)
    half = 2.776 * (0.5 * 1.25 * 1.2 / 100) ** 0.5
    assert (low, high) == (pytest.approx(0.7 - half, rel=1e-2), pytest.approx(0.7 + half, rel=1e-2))
    layout = layout_from_hosts([[[0]]], experts=1)
    with pytest.raises(BadOption, match="sample of 0 tokens"):
        score_tokens({"it": layout}, [some_tokens([[[0]]], experts=1)], Topology(1), dispatch=DYNAMIC, sample_tokens=0)


def test_a_trace_without_experts_has_no_figures():
    layout = layout_from_hosts([[[0]]], experts=1)
    assert score_tokens({"it": layout}, [], Topology(1), dispatch=DYNAMIC) == {}
    assert score_tokens({"it": layout}, [], Topology(1), dispatch=DYNAMIC, sample_tokens=5) == {}
