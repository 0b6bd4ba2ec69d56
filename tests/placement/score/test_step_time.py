"""Predicted times beside a plain count over sources, experts and GPUs."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.dispatch import Dispatch, dispatch_table
from placement.errors import BadOption, EmptyProfile
from placement.layout import Layout, layout_from_hosts
from placement.score import Copies, count_copies, moe_layer_time
from placement.step_time import Step
from placement.tokens import Tokens
from placement.topology import Topology
from tests.placement.hardware.profiles import EXPERT, PROFILE

PREFILL = Step(PROFILE, "prefill", EXPERT, top_k=2, tokens_per_gpu=10)
DECODE = replace(PREFILL, phase="decode")


def one_layer(hosts: list[list[int]], *, experts: int) -> Layout:
    return layout_from_hosts([hosts], experts=experts)


def test_all_at_home_takes_the_fixed_all_to_all() -> None:
    layout = one_layer([[0, 1], [0, 1]], experts=2)
    time = moe_layer_time(
        layout, Demand.uniform([[5, 5]]), Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC, step=PREFILL
    )
    # 20 rows and 2 sure experts on each GPU
    assert time.expert_s == pytest.approx(23e-6)
    assert time.all_to_all_s == pytest.approx(5e-6)
    assert time.moe_layer_s == pytest.approx(28e-6)
    assert (time.basis, time.hardware, time.phase, time.tokens_per_gpu) == ("counts", "round", "prefill", 10)


def test_a_token_goes_once_to_a_gpu_and_once_for_each_expert() -> None:
    layout = one_layer([[0, 1], [2, 3]], experts=4)
    # every token of GPU 0 has the experts 2 and 3, those of GPU 1 stay
    demand = Demand(np.array([[[[0, 0, 5, 5], [0, 0, 5, 5]]]]), "measured", ("w",))
    per_gpu = moe_layer_time(layout, demand, Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC, step=PREFILL)
    per_expert = moe_layer_time(layout, demand, Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC, step=DECODE)
    assert per_gpu.all_to_all_s == pytest.approx((5 + 10) * 1e-6)
    assert per_expert.all_to_all_s == pytest.approx((2 + 20) * 1e-6)
    assert per_gpu.expert_s == per_expert.expert_s == pytest.approx((1 + 40 + 2) * 1e-6)


def test_a_token_crosses_to_a_node_once_and_is_passed_on_there() -> None:
    layout = one_layer([[0], [1], [2], [3]], experts=4)
    # all tokens live on GPU 0 and go to experts 2 and 3, both on the other node: GPU 2 gets them over RDMA and
    # passes one copy to GPU 3 over NVLink
    tokens = np.zeros((1, 1, 4, 4), dtype=np.int64)
    tokens[0, 0, 0, 2:] = 5
    demand = Demand(tokens, "measured", ("w",))
    two_nodes = moe_layer_time(layout, demand, Topology(4, 2), dispatch=Dispatch.NEAREST_DYNAMIC, step=PREFILL)
    one_node = moe_layer_time(layout, demand, Topology(4), dispatch=Dispatch.NEAREST_DYNAMIC, step=PREFILL)
    # 40 tokens in all: 40 copies over RDMA at 10 us; on one node 80 copies leave GPU 0
    assert two_nodes.all_to_all_s == pytest.approx((5 + 400) * 1e-6)
    assert one_node.all_to_all_s == pytest.approx((5 + 80) * 1e-6)


def test_without_all_to_all_there_is_no_time_for_it() -> None:
    layout = one_layer([[0], [1]], experts=2)
    time = moe_layer_time(layout, Demand.uniform([[9, 1]]), Topology(2), dispatch=Dispatch.EVEN, step=PREFILL)
    assert time.all_to_all_s is None
    assert time.moe_layer_s == time.expert_s == pytest.approx((1 + 36 + 1) * 1e-6, rel=1e-3)


def test_windows_weigh_by_their_tokens_and_the_slowest_is_named() -> None:
    layout = one_layer([[0], [1]], experts=2)
    demand = Demand.uniform(np.array([[[6, 2]], [[4, 4]]]))
    both = moe_layer_time(layout, demand, Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC, step=PREFILL)
    alone = [
        moe_layer_time(
            layout, demand.pick_windows([index]), Topology(2), dispatch=Dispatch.NEAREST_DYNAMIC, step=PREFILL
        ).moe_layer_s
        for index in range(2)
    ]
    assert both.moe_layer_s == pytest.approx(sum(alone) / 2)
    assert both.worst_window_s == pytest.approx(max(alone))


def test_a_demand_without_tokens_is_refused() -> None:
    with pytest.raises(EmptyProfile):
        moe_layer_time(
            one_layer([[0], [1]], experts=2),
            Demand.uniform([[0, 0]]),
            Topology(2),
            dispatch=Dispatch.EVEN,
            step=PREFILL,
        )


@pytest.mark.parametrize("tokens", [0, -1, 2**30])
def test_steps_of_no_size_are_refused(tokens: int) -> None:
    with pytest.raises(BadOption, match="tokens per GPU"):
        replace(PREFILL, tokens_per_gpu=tokens)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Layout, Demand, Topology]:
    nodes, local, slots = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    gpus = nodes * local
    experts = draw(st.integers(max(slots, 1), gpus * slots))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    spare = rng.integers(0, experts, size=gpus * slots - experts)
    slots_P = rng.permutation(np.concatenate([np.arange(experts), spare]))
    layout = Layout(slots_P[None].astype(np.int32), gpus=gpus, experts=experts)
    tokens = rng.integers(0, 40, size=(1, 1, gpus, experts))
    tokens[0, 0, 0, 0] += 1
    return layout, Demand(tokens, "measured", ("w",)), Topology(gpus, nodes)


def plain_times(layout: Layout, demand: Demand, topology: Topology, step: Step) -> tuple[float, float]:
    """Count with loops what the ruler works out with arrays."""
    gpus, node = range(topology.gpus), topology.node_of_gpu_G
    share = dispatch_table(layout, topology, dispatch=Dispatch.NEAREST_DYNAMIC).share_SEG(0)
    tokens_SE = demand.tokens_WLSE[0, 0]
    mean = np.array([row / max(row.sum(), 1) * step.top_k for row in tokens_SE])
    tokens = tokens_SE.sum(axis=1) / tokens_SE.sum() * step.tokens_per_gpu * topology.gpus
    experts = range(layout.experts)

    def none_of(source: int, sites: list[int]) -> float:
        return prod(1 - min(mean[source, e], 1) * sum(share[source, e, g] for g in sites) for e in experts)

    rows = [sum(tokens[s] * mean[s, e] * share[s, e, g] for s in gpus for e in experts) for g in gpus]
    active = [
        sum(1 - prod((1 - min(mean[s, e], 1) * share[s, e, g]) ** tokens[s] for s in gpus) for e in experts)
        for g in gpus
    ]
    expert_s = max(1e-6 * (1 + rows[g] + active[g]) for g in gpus)
    near_out, near_in, far_out, far_in = (np.zeros(topology.gpus) for _ in range(4))
    for s in gpus:
        for g in gpus:
            if step.phase == "decode":
                copies = sum(tokens[s] * mean[s, e] * share[s, e, g] for e in experts)
                out, into = (near_out, near_in) if node[s] == node[g] else (far_out, far_in)
                out[s] += copies if s != g else 0
                into[g] += copies if s != g else 0
                continue
            copies = tokens[s] * (1 - none_of(s, [g]))
            through = s if node[s] == node[g] else int(node[g]) * topology.gpus_per_node + s % topology.gpus_per_node
            near_out[through] += copies if through != g else 0
            near_in[g] += copies if through != g else 0
        for n in range(topology.nodes):
            if step.phase == "prefill" and n != node[s]:
                inside = [g for g in gpus if node[g] == n]
                copies = tokens[s] * (1 - none_of(s, inside))
                far_out[s] += copies
                far_in[inside[s % topology.gpus_per_node]] += copies
    fixed = {"prefill": 5, "decode": 2}[step.phase]
    all_to_all_s = max(1e-6 * (fixed + max(near_out[g], near_in[g], 10 * far_out[g], 10 * far_in[g])) for g in gpus)
    return expert_s, all_to_all_s


@settings(max_examples=60, deadline=None)
@given(case=_cases(), phase=st.sampled_from(["prefill", "decode"]), tokens=st.integers(1, 50))
def test_arrays_agree_with_loops(case: tuple[Layout, Demand, Topology], phase: str, tokens: int) -> None:
    step = replace(PREFILL, phase=phase, tokens_per_gpu=tokens)
    time = moe_layer_time(*case, dispatch=Dispatch.NEAREST_DYNAMIC, step=step)
    expert_s, all_to_all_s = plain_times(*case, step)
    assert time.expert_s == pytest.approx(expert_s, rel=1e-9)
    assert time.all_to_all_s == pytest.approx(all_to_all_s, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(case=_cases(), phase=st.sampled_from(["prefill", "decode"]))
def test_equal_measured_sources_are_uniform_ones(case: tuple[Layout, Demand, Topology], phase: str) -> None:
    layout, demand, topology = case
    step = replace(PREFILL, phase=phase)
    uniform = demand.with_uniform_sources()
    repeated = Demand(np.repeat(uniform.tokens_WLSE, topology.gpus, axis=2), "measured", ("w",))
    times = [
        moe_layer_time(layout, each, topology, dispatch=Dispatch.NEAREST_DYNAMIC, step=step)
        for each in (uniform, repeated)
    ]
    assert times[0].moe_layer_s == pytest.approx(times[1].moe_layer_s, rel=1e-9)


def counted(layout: Layout, demand: Demand, topology: Topology, experts_TK: list[list[int]]) -> Copies:
    """Copies of tokens that live on GPU 0, in the one window."""
    tokens = Tokens(
        experts_LTK=np.array([experts_TK], dtype=np.uint16),
        experts=layout.experts,
        home_T=np.zeros(len(experts_TK), dtype=np.int32),
        window_T=np.zeros(len(experts_TK), dtype=np.int32),
        request_T=np.arange(len(experts_TK), dtype=np.int64),
        step_T=np.zeros(len(experts_TK), dtype=np.int64),
        phase_T=np.zeros(len(experts_TK), dtype=np.uint8),
    )
    found = count_copies({"it": layout}, [tokens], topology, dispatch=Dispatch.NEAREST_DYNAMIC, windows=1)
    return found["it"]


def test_experts_chosen_together_are_seen_in_a_trace_only() -> None:
    """Every token goes either to experts 2 and 3 or to 4 and 5: one copy each, where counts expect 1.5."""
    layout = one_layer([[0, 1], [2, 3], [4, 5]], experts=6)
    tokens = np.zeros((1, 1, 3, 6), dtype=np.int64)
    tokens[0, 0, 0, 2:] = 5
    demand, topology = Demand(tokens, "measured", ("w",)), Topology(3)
    copies = counted(layout, demand, topology, [[2, 3]] * 5 + [[4, 5]] * 5)
    from_counts, from_tokens = (
        moe_layer_time(layout, demand, topology, dispatch=Dispatch.NEAREST_DYNAMIC, step=PREFILL, copies=given)
        for given in (None, copies)
    )
    # 30 tokens in all, from GPU 0
    assert from_counts.all_to_all_s == pytest.approx((5 + 45) * 1e-6)
    assert from_tokens.all_to_all_s == pytest.approx((5 + 30) * 1e-6)
    assert (from_counts.basis, from_tokens.basis) == ("counts", "tokens")
    assert from_tokens.expert_s == from_counts.expert_s


def test_where_every_expert_gets_a_copy_a_trace_says_no_more() -> None:
    layout = one_layer([[0, 1], [2, 3], [4, 5]], experts=6)
    tokens = np.zeros((1, 1, 3, 6), dtype=np.int64)
    tokens[0, 0, 0, 2:] = 5
    demand, topology = Demand(tokens, "measured", ("w",)), Topology(3)
    copies = counted(layout, demand, topology, [[2, 3]] * 5 + [[4, 5]] * 5)
    time = moe_layer_time(layout, demand, topology, dispatch=Dispatch.NEAREST_DYNAMIC, step=DECODE, copies=copies)
    assert time == moe_layer_time(layout, demand, topology, dispatch=Dispatch.NEAREST_DYNAMIC, step=DECODE)
