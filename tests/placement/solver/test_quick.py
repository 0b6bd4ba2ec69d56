"""The numpy-only search: valid, near, no worse than what runs, and importable where OR-Tools is not."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.demand import Demand
from placement.layout import Layout
from placement.problem import Problem
from placement.score import score
from placement.solver.quick import nearest_slots, quick_balance
from placement.topology import Topology


def problem_of(
    tokens_WLE: np.ndarray, *, gpus: int, nodes: int, slots_per_gpu: int, current: np.ndarray | None = None
) -> Problem:
    experts = tokens_WLE.shape[2]
    if current is None:
        current = np.tile(np.arange(gpus * slots_per_gpu) % experts, (tokens_WLE.shape[1], 1))
    return Problem(
        demand=Demand.uniform(tokens_WLE),
        topology=Topology(gpus=gpus, nodes=nodes),
        slots_per_gpu=slots_per_gpu,
        current=Layout(current, gpus=gpus, experts=experts),
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.sampled_from([1, 2]), windows=st.integers(1, 3), extra=st.integers(0, 2))
def test_layouts_are_valid_and_no_worse(seed: int, nodes: int, windows: int, extra: int) -> None:
    draw = np.random.default_rng(seed)
    tokens_WLE = draw.zipf(1.5, size=(windows, 3, 8)).clip(max=5000)
    tokens_WLE[:, 1] = 0
    problem = problem_of(tokens_WLE, gpus=4, nodes=nodes, slots_per_gpu=2 + extra)
    assert problem.current is not None
    layout = quick_balance(problem)
    assert np.array_equal(layout.slot_to_expert_LP[1], problem.current.slot_to_expert_LP[1]), "no demand, no change"
    assert layout.hash == quick_balance(problem).hash
    assert (layout.replicas_LEG[[0, 2]] <= 1).all()
    single = problem.demand.merged()
    if windows == 1 and (problem.current.replicas_LEG[[0, 2]] <= 1).all():
        before, after = (
            score(one, single, problem.topology, dispatch=problem.dispatch).imbalance
            for one in (problem.current, layout)
        )
        assert after <= before * (1 + 1e-9)


def test_hot_experts_are_spread() -> None:
    tokens_WLE = np.array([[[900, 10, 10, 10, 10, 10, 10, 10]]])
    layout = quick_balance(problem_of(tokens_WLE, gpus=4, nodes=1, slots_per_gpu=3))
    assert layout.replicas_LEG[0, 0].sum() == 4


def test_a_layout_with_little_to_gain_stays() -> None:
    tokens_WLE = np.array([[[1000, 1001, 1000, 999]]])
    current = np.array([[3, 1, 2, 0]])
    layout = quick_balance(problem_of(tokens_WLE, gpus=2, nodes=1, slots_per_gpu=2, current=current))
    assert layout.slot_to_expert_LP.tolist() == current.tolist()


def test_gpus_are_renamed_on_one_node_only() -> None:
    running, wanted = np.array([[[0, 1], [2, 3]]]), np.array([[[3, 2], [1, 0]]])
    assert nearest_slots(running, wanted, experts=4, nodes=1).tolist() == running.tolist()
    assert nearest_slots(running, wanted, experts=4, nodes=2).tolist() == wanted.tolist()


def test_experts_that_stay_keep_their_slot() -> None:
    running, wanted = np.array([[[0, 1, 2], [3, 4, 5]]]), np.array([[[1, 5, 0], [2, 3, 4]]])
    assert nearest_slots(running, wanted, experts=6, nodes=1).tolist() == [[[0, 1, 5], [3, 4, 2]]]


def test_the_running_layout_is_needed() -> None:
    problem = problem_of(np.ones((1, 1, 4), dtype=np.int64), gpus=2, nodes=1, slots_per_gpu=2)
    with pytest.raises(ValueError, match="layout that runs now"):
        quick_balance(Problem(problem.demand, problem.topology, problem.slots_per_gpu))


def test_it_imports_without_ortools() -> None:
    program = "import sys; sys.modules['ortools'] = None; import placement.solver.quick"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
