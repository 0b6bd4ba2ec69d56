"""Plans for traffic: few copies under the cap, never worse than what they start from, the same for everybody."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest

from placement.baselines import plan_eplb
from placement.diff import diff
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.pareto import move_points
from placement.problem import Objective, Problem
from placement.score import score, score_tokens
from placement.solution import Status
from placement.solver import solve, solve_within_shares
from placement.token_sample import TokenSample
from placement.tokens import NO_EXPERT
from tests.placement.solver.traffic.problems import copies_of, grouped_tokens, problem_of, shuffled


def _worst(layout: Layout, problem: Problem) -> float:
    return score(layout, problem.demand, problem.topology, dispatch=problem.dispatch).worst_window.imbalance


def _codes(solution) -> set[str]:
    return {notice.code for notice in solution.notices}


def test_experts_that_are_needed_together_come_together():
    # Four groups of four experts on four GPUs of four slots: a token of one group needs one GPU.
    problem = problem_of(grouped_tokens(loyalty=2.0), gpus=4, slots_per_gpu=4)
    solution = solve(problem)
    assert copies_of(solution.layout, problem) == pytest.approx(1 - 1 / 4)
    assert _worst(solution.layout, problem) <= 1.2
    assert copies_of(plan_eplb(problem).layout, problem) > 1.5


def test_without_replicas_small_layers_are_solved_to_the_optimum():
    tokens = grouped_tokens(layers=1, experts=6, groups=2, top_k=2, count=120, loyalty=0.5, seed=3)
    problem = problem_of(tokens, gpus=2, slots_per_gpu=3, max_imbalance=1.1)
    best = np.inf
    for half in itertools.combinations(range(6), 3):
        row = [*half, *(expert for expert in range(6) if expert not in half)]
        layout = Layout(np.array([row, row]), gpus=2, experts=6)
        if _worst(layout, problem) <= 1.1:
            best = min(best, copies_of(layout, problem))
    solution = solve(problem)
    assert copies_of(solution.layout, problem) == pytest.approx(best)
    assert solution.bound.gpus_per_token <= best + 1e-9


def test_without_a_cap_that_binds_small_layers_are_proven_optimal():
    for homes in (0, 3):
        tokens = grouped_tokens(layers=2, experts=6, groups=2, top_k=2, count=150, loyalty=0.3, homes=homes, seed=1)
        solution = solve(problem_of(tokens, gpus=3, slots_per_gpu=2, max_imbalance=3.0))
        assert solution.status is Status.OPTIMAL
        assert "CP-SAT" in solution.bound.relaxation["gpus_per_token"]


@pytest.mark.parametrize("slots_per_gpu", [4, 6])
@pytest.mark.parametrize(("homes", "nodes"), [(0, 1), (4, 1), (0, 2), (4, 2)])
def test_never_more_copies_than_the_plan_for_locality_under_the_same_cap(slots_per_gpu, homes, nodes):
    problem = problem_of(
        grouped_tokens(homes=homes, loyalty=0.4, windows=2), gpus=4, nodes=nodes, slots_per_gpu=slots_per_gpu
    )
    local = solve(replace(problem, objective=Objective.LOCALITY, tokens=None))
    solution = solve(problem)
    assert copies_of(solution.layout, problem) <= copies_of(local.layout, problem) + 1e-5
    assert _worst(solution.layout, problem) <= solution.max_imbalance * (1 + 1e-9)
    assert solution.bound.gpus_per_token <= copies_of(solution.layout, problem) + 1e-5
    assert solution.layout.duplicated_slots() == 0


def test_a_cap_out_of_reach_is_handled_as_for_locality():
    tokens = grouped_tokens()
    ids = tokens.experts_LTK.copy()
    ids[1:, :, 0] = 0  # one expert takes a third of everything
    problem = problem_of(replace(tokens, experts_LTK=ids), gpus=4, slots_per_gpu=4, max_imbalance=1.05)
    solution = solve(problem)
    assert "IMBALANCE_CAP_UNREACHABLE" in _codes(solution)
    assert _worst(solution.layout, problem) <= solution.max_imbalance * (1 + 1e-9)


def test_with_choices_shuffled_the_gain_vanishes():
    tokens = grouped_tokens(count=2000, loyalty=0.6)
    gains = []
    for each in (tokens, shuffled(tokens)):
        half = np.arange(each.tokens) % 2 == 0
        problem = problem_of(each.pick(half), gpus=4, slots_per_gpu=4, max_imbalance=1.1)
        judged = each.pick(~half)
        layouts = {"ours": solve(problem).layout, "eplb": plan_eplb(problem).layout}
        found = score_tokens(layouts, [judged], problem.topology, dispatch=problem.dispatch)
        gains.append(1 - found["ours"].gpus_per_token / found["eplb"].gpus_per_token)
    assert gains[0] > 0.2
    assert abs(gains[1]) < 0.02


def _elsewhere(run, tasks):
    """Run tasks as another process would: sent there and back, last first."""
    sent = [pickle.dumps(task) for task in tasks]
    done = [pickle.dumps(run(pickle.loads(task))) for task in reversed(sent)]
    return [pickle.loads(each) for each in reversed(done)]


def test_the_plan_is_the_same_whoever_searches():
    problem = problem_of(grouped_tokens(loyalty=0.4), gpus=4, slots_per_gpu=6)
    alone = solve(problem, seed=5).layout
    assert solve(problem, seed=5, threads=3).layout == alone
    assert solve(problem, seed=5, map_tasks=_elsewhere).layout == alone


def test_from_counts_alone_it_says_so_and_plans_for_locality():
    problem = problem_of(grouped_tokens(), gpus=4, slots_per_gpu=6)
    counted = replace(problem, tokens=None)
    solution = solve(counted)
    assert "TRAFFIC_NEEDS_TOKENS" in _codes(solution)
    assert solution.layout == solve(replace(counted, objective=Objective.LOCALITY)).layout
    assert solution.bound.gpus_per_token is None


def test_where_nothing_is_sent_it_says_so_and_plans_for_balance():
    problem = problem_of(grouped_tokens(), gpus=4, slots_per_gpu=6, dispatch=Dispatch.EVEN)
    solution = solve(problem)
    assert "TRAFFIC_UNDEFINED" in _codes(solution)
    assert "LOCALITY_UNDEFINED" not in _codes(solution)
    assert solution.layout == solve(replace(problem, objective=Objective.BALANCE)).layout


def test_a_sample_proves_nothing_about_copies():
    problem = problem_of(grouped_tokens(), gpus=4, slots_per_gpu=4)
    part = replace(problem, tokens=TokenSample(problem.tokens.tokens, recorded_tokens=10_000))
    solution = solve(part)
    assert "TOKENS_SAMPLED" in _codes(solution)
    assert (solution.bound.gpus_per_token, solution.status) == (None, Status.FEASIBLE)


def test_what_needs_as_few_copies_as_proven_is_optimal():
    ids = np.array([[0, 1], [2, 3], [4, 5], [6, 7]] * 10, dtype=np.uint16)
    tokens = grouped_tokens(layers=1, experts=8, top_k=2, count=40)
    topk = np.stack([np.full_like(ids, NO_EXPERT), ids])
    problem = problem_of(replace(tokens, experts_LTK=topk), gpus=4, slots_per_gpu=2, max_imbalance=1.05)
    solution = solve(problem)
    assert solution.status is Status.OPTIMAL
    assert solution.bound.gpus_per_token == pytest.approx(0.75)


def test_a_budget_of_moves_is_kept_and_buys_what_it_can():
    tokens = grouped_tokens(loyalty=2.0)
    free = problem_of(tokens, gpus=4, slots_per_gpu=4, max_imbalance=1.6)
    copies, moved = [], []
    for budget in (0, 8, 100):
        problem = replace(free, max_moved_slots=budget)
        layout = solve(problem).layout
        before = Layout(np.tile(np.arange(16), (3, 1)), gpus=4, experts=16)
        moved.append(diff(before, layout, moe_layers=problem.demand.moe_layers).moved_slots)
        copies.append(copies_of(layout, problem))
    assert moved[0] == 0
    assert moved[1] <= 8
    assert copies[0] > copies[1] > copies[2]


def test_what_runs_stays_where_it_is_as_good():
    problem = problem_of(grouped_tokens(loyalty=0.5), gpus=4, slots_per_gpu=6)
    first = solve(problem)
    again = solve(replace(problem, current=first.layout))
    assert diff(first.layout, again.layout, moe_layers=problem.demand.moe_layers).moved_slots == 0


def test_plans_that_move_less_are_traffic_plans_too():
    problem = problem_of(grouped_tokens(loyalty=2.0), gpus=4, slots_per_gpu=4, max_imbalance=1.6)
    solution, within = solve_within_shares(problem, (0.0, 0.5, 1.0))
    copies = [copies_of(each.layout, problem) for each in within]
    assert copies == sorted(copies, reverse=True)
    assert copies_of(solution.layout, problem) <= copies[-1] + 1e-5
    before = Layout(np.tile(np.arange(16), (3, 1)), gpus=4, experts=16)
    points = move_points(problem, [each.layout for each in within], before=before)
    assert [point.gpus_per_token for point in points] == pytest.approx(sorted(set(copies), reverse=True))


def test_a_time_limit_ends_the_search_with_what_there_is():
    problem = problem_of(grouped_tokens(layers=4, count=4000, loyalty=0.4), gpus=4, slots_per_gpu=6)
    solution = solve(problem, time_limit_s=0.05)
    assert "BEST_EFFORT_PLAN" in _codes(solution)
    assert _worst(solution.layout, problem) <= solution.max_imbalance * (1 + 1e-9)
    assert solution.solve_seconds < 5


def test_gpus_that_are_needed_together_share_a_node():
    # Groups of eight experts fill two GPUs each; tokens need both.
    tokens = grouped_tokens(experts=16, groups=2, top_k=6, loyalty=3.0, layers=1, count=300)
    problem = problem_of(tokens, gpus=4, nodes=2, slots_per_gpu=4)
    layout = solve(problem).layout
    found = score_tokens({"it": layout}, [tokens], problem.topology, dispatch=problem.dispatch)["it"]
    assert found.nodes_per_token == pytest.approx(0.5)


def test_a_cap_on_overflow_is_kept_where_it_can_be():
    problem = problem_of(
        grouped_tokens(loyalty=0.4), gpus=4, slots_per_gpu=6, max_imbalance=1.5, capacity_factor=1.05, max_overflow=0.0
    )
    solution = solve(problem)
    metrics = score(solution.layout, problem.demand, problem.topology, dispatch=problem.dispatch, capacity_factor=1.05)
    assert metrics.overflow_share == pytest.approx(0, abs=1e-9)
    assert "OVERFLOW_CAP_UNREACHABLE" not in _codes(solution)
