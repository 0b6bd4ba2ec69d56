from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.baselines import BASELINES
from placement.bounds import step_time_bound
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.hardware import Phase
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import moe_layer_time, score
from placement.solution import Status
from placement.solver import solve
from placement.solver.deadline import Deadline
from placement.solver.step_time.layer import layer_times
from placement.solver.step_time.search import LayerSearch
from placement.step_time import Step
from placement.topology import Topology
from tests.placement.hardware.profiles import EXPERT, PROFILE

STEP = Step(PROFILE, "prefill", EXPERT, top_k=2, tokens_per_gpu=10)
DISPATCHES = (Dispatch.NEAREST_DYNAMIC, Dispatch.EVEN)


def problem(
    *,
    seed: int = 0,
    windows: int = 2,
    layers: int = 1,
    experts: int = 12,
    nodes: int = 1,
    local: int = 4,
    slots: int = 4,
    measured: bool = True,
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC,
    phase: Phase = "prefill",
    tokens: int = 10,
) -> Problem:
    rng = np.random.default_rng(seed)
    gpus = nodes * local
    tokens_WLSE = rng.poisson(20 * rng.gamma(0.7, size=(windows, layers, gpus if measured else 1, experts)))
    tokens_WLSE[..., 0] += 1
    names = tuple(f"w{index}" for index in range(windows))
    return Problem(
        Demand(tokens_WLSE, "measured" if measured else "uniform", names),
        Topology(gpus, nodes),
        slots,
        objective=Objective.STEP_TIME,
        dispatch=dispatch,
        step=replace(STEP, phase=phase, tokens_per_gpu=tokens),
    )


def seconds(asked: Problem, layout: Layout) -> float:
    assert asked.step is not None
    time = moe_layer_time(layout, asked.demand, asked.topology, dispatch=asked.dispatch, step=asked.step)
    return time.moe_layer_s


def random_layout(asked: Problem, *, seed: int) -> Layout:
    """No expert twice on a GPU."""
    return BASELINES["random"](asked, seed=seed)


@st.composite
def _problems(draw: st.DrawFn) -> Problem:
    nodes, local = draw(st.sampled_from([(1, 2), (1, 4), (2, 2), (3, 2)]))
    slots = draw(st.integers(2, 5))
    experts = draw(st.integers(slots, min(nodes * local * slots, 14)))
    return problem(
        seed=draw(st.integers(0, 999)),
        windows=draw(st.integers(1, 3)),
        experts=experts,
        nodes=nodes,
        local=local,
        slots=slots,
        measured=draw(st.booleans()),
        dispatch=draw(st.sampled_from(DISPATCHES)),
        phase=draw(st.sampled_from(["prefill", "decode"])),
        tokens=draw(st.integers(1, 40)),
    )


@settings(max_examples=60, deadline=None)
@given(asked=_problems(), seed=st.integers(0, 99))
def test_the_search_counts_as_the_ruler_does(asked: Problem, seed: int) -> None:
    """Also after exchanges, which change the sums by those of two experts."""
    assert asked.step is not None
    layout = random_layout(asked, seed=seed)
    rows_LP = layout.slot_to_expert_LP.astype(np.int64).copy()
    found = []
    for layer in asked.demand.moe_layers:
        slots_GP = rows_LP[layer].reshape(asked.topology.gpus, asked.slots_per_gpu)
        if any(len(set(row_P)) < len(row_P) for row_P in slots_GP.tolist()):
            return
        search = LayerSearch.start(layer_times(asked, asked.step, layer), slots_GP)
        search.improve(rounds=5, seed=seed, deadline=Deadline.after(None))
        rows_LP[layer] = search.slots_GP.ravel()
        found.append(search.seconds)
    improved = Layout(rows_LP.astype(np.int32), gpus=asked.topology.gpus, experts=asked.demand.experts)
    assert float(np.mean(found)) == pytest.approx(seconds(asked, improved), rel=1e-9)
    assert seconds(asked, improved) <= seconds(asked, layout) * (1 + 2e-3)


@settings(max_examples=80, deadline=None)
@given(asked=_problems(), seed=st.integers(0, 99), dispatch=st.sampled_from(list(Dispatch)))
def test_no_layout_is_below_the_bound(asked: Problem, seed: int, dispatch: Dispatch) -> None:
    asked = replace(asked, dispatch=dispatch)
    layout = random_layout(asked, seed=seed)
    assert seconds(asked, layout) >= step_time_bound(asked).seconds * (1 - 1e-9)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_plan_is_as_fast_as_every_baseline_and_other_plan(phase: Phase, nodes: int) -> None:
    asked = problem(phase=phase, nodes=nodes, local=4 // nodes)
    solution = solve(asked)
    others = [make(asked, seed=0) for make in BASELINES.values()]
    others += [
        solve(replace(asked, objective=objective, step=None), exact_seconds=0).layout
        for objective in (Objective.LOCALITY, Objective.BALANCE)
    ]
    fastest = seconds(asked, solution.layout)
    assert all(fastest <= seconds(asked, layout) * (1 + 1e-9) for layout in others)
    assert solution.bound.moe_layer_s is not None
    assert solution.bound.moe_layer_s <= fastest
    assert seconds(asked, solution.beside["locality"]) >= fastest * (1 - 1e-9)


def test_one_gpu_leaves_nothing_to_choose_and_the_plan_is_proven_optimal() -> None:
    asked = problem(experts=4, slots=4, local=1, measured=False)
    solution = solve(asked)
    assert solution.status is Status.OPTIMAL
    assert seconds(asked, solution.layout) == pytest.approx(step_time_bound(asked).seconds, rel=1e-9)


def test_equal_problems_give_equal_plans() -> None:
    asked = problem()
    assert solve(asked, seed=3).layout == solve(asked, seed=3).layout


def test_spare_slots_go_where_they_cost_least() -> None:
    """Tokens that are all at home wherever they live: replicas only cost reads of weights: cold ones get them."""
    tokens_WLSE = np.zeros((1, 1, 2, 4), dtype=np.int64)
    tokens_WLSE[0, 0, 0, :2] = 50
    tokens_WLSE[0, 0, 1, 2:] = 50
    asked = Problem(
        Demand(tokens_WLSE, "measured", ("w",)),
        Topology(2),
        3,
        objective=Objective.STEP_TIME,
        step=replace(STEP, phase="decode"),
    )
    solution = solve(asked)
    home = [[0, 1], [2, 3]]
    for gpu, row_P in enumerate(solution.layout.slot_to_expert_LP[0].reshape(2, 3).tolist()):
        assert set(home[gpu]) <= set(row_P)
    # 20 rows, 2 active experts, nothing sent
    assert seconds(asked, solution.layout) == pytest.approx((1 + 20 + 2 + 2) * 1e-6)


def test_what_runs_stays_where_it_is_as_fast() -> None:
    asked = problem()
    planned = solve(asked).layout
    again = solve(replace(asked, current=planned))
    assert again.layout == planned


def test_imbalance_above_the_cap_is_said() -> None:
    """One GPU's tokens want two experts; serving them there is worth an imbalance of 2."""
    tokens_WLSE = np.zeros((1, 1, 2, 4), dtype=np.int64)
    tokens_WLSE[0, 0, 0, :2] = 50
    tokens_WLSE[0, 0, 1, 2:] = 1
    asked = Problem(
        Demand(tokens_WLSE, "measured", ("w",)),
        Topology(2),
        2,
        objective=Objective.STEP_TIME,
        step=replace(STEP, hardware=replace(PROFILE, prefill=replace(PROFILE.prefill, nvlink_bytes_per_s=1e5))),
    )
    solution = solve(asked)
    assert score(solution.layout, asked.demand, asked.topology, dispatch=asked.dispatch).imbalance > 1.9
    assert "IMBALANCE_COUNTED_AS_TIME" in {notice.code for notice in solution.notices}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"step": None}, "needs hardware"),
        ({"max_moved_slots": 3}, "takes no max_moved_slots"),
        ({"max_overflow": 0.1}, "takes no max_overflow"),
    ],
)
def test_what_the_objective_cannot_take_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence):
        replace(problem(), **change)


def test_a_bound_needs_a_step() -> None:
    with pytest.raises(BadOption, match="needs a step"):
        step_time_bound(replace(problem(), objective=Objective.LOCALITY, step=None))
