"""What the solver reaches beside what is proven: ``python -m tests.bench.solver``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from placement.problem import Objective, Problem
from placement.score import score
from placement.solution import Solution
from placement.solver import fit, solve
from placement.topology import Topology
from tests.bench.support.recorded import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    MIXTRAL,
    QWEN3_30B,
    demand_at_home,
    recorded_demand,
    require_recordings,
)
from tests.bench.support.tables import print_head, print_rows

LOCAL_TARGET = 0.6
GROWTH = (1.25, 1.5, 2, 3, 4)
"""Slots over experts in the table of gaps; up to one replica per GPU."""

COLUMNS = (
    "demand",
    "GPUs",
    "nodes",
    "slots/GPU",
    "objective",
    "local_gpu",
    "bound",
    "gap %",
    "worst imbalance",
    "bound",
    "status",
    "seconds",
    "notices",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=None, help="Seconds for each plan.")
    parser.add_argument("--gaps", action="store_true", help="Also the table of gaps over GPUs and slots.")
    chosen = parser.parse_args()
    require_recordings()
    print_head(
        "The solver on recorded routing: local share and imbalance beside what is proven",
        protocol=(
            "imbalance <= 1.05 in every window where reachable; nearest-dynamic; judged by the ruler on the demand "
            "that was planned for",
            "measured: every task of the trace on its own GPUs, its requests in turn over them; else uniform sources",
            f"seed {chosen.seed}, one thread, time limit {chosen.time_limit or 'none'}, seconds of the wall clock",
        ),
    )
    problems = _problems()
    print_rows(COLUMNS, (_solved(*each, seed=chosen.seed, limit_s=chosen.time_limit) for each in problems))
    print_rows(COLUMNS, _fitted(seed=chosen.seed), title=f"fewest slots for {LOCAL_TARGET:.0%} on the own GPU")
    if chosen.gaps:
        rows = (_solved(*each, seed=chosen.seed, limit_s=chosen.time_limit) for each in _grid())
        print_rows(COLUMNS, rows, title="gaps over GPUs and slots")


def _problems() -> Iterator[tuple[str, Problem]]:
    lite = recorded_demand(DEEPSEEK_V2_LITE, gpus=8, window_by="none")
    yield "deepseek-v2-lite", Problem(lite, Topology(8), 24)
    for gpus, slots in ((2, 40), (4, 24), (8, 24)):
        at_home = demand_at_home(DEEPSEEK_V2_LITE, gpus=gpus)
        yield "deepseek-v2-lite, measured", Problem(at_home, Topology(gpus), slots)
    workloads = recorded_demand(DEEPSEEK_V3, gpus=32)
    for nodes in (1, 4):
        for name, demand in (("prefill 1024", workloads.pick_windows([0])), ("3 workloads", workloads)):
            problem = Problem(demand, Topology(32, nodes), 9, objective=Objective.BALANCE)
            yield f"deepseek-v3, {name}", problem
            yield f"deepseek-v3, {name}", replace(problem, objective=Objective.LOCALITY)
    subjects = recorded_demand(MIXTRAL, gpus=8, window_by="file")
    for slots in (2, 3, 4, 5):
        yield "mixtral-8x7b, merged", Problem(subjects.merged(), Topology(8), slots)
    for slots in (3, 4, 5):
        yield f"mixtral-8x7b, {subjects.windows} windows", Problem(subjects, Topology(8), slots)


def _grid() -> Iterator[tuple[str, Problem]]:
    for gpus in (2, 4, 8):
        for name, demand in (
            ("deepseek-v2-lite", recorded_demand(DEEPSEEK_V2_LITE, gpus=gpus, window_by="none")),
            ("deepseek-v2-lite, measured", demand_at_home(DEEPSEEK_V2_LITE, gpus=gpus)),
            ("qwen3-30b-a3b, merged", recorded_demand(QWEN3_30B, gpus=gpus).merged()),
        ):
            for growth in GROWTH:
                if growth <= min(GROWTH[-1], gpus):
                    slots = ceil(demand.experts * growth / gpus)
                    yield name, Problem(demand, Topology(gpus), slots)


def _fitted(*, seed: int) -> Iterator[tuple[object, ...]]:
    for gpus in (2, 4, 8):
        demand = recorded_demand(DEEPSEEK_V2_LITE, gpus=gpus, window_by="none")
        problem = Problem(demand, Topology(gpus), demand.experts)
        slots, solution = fit(problem, local_target=LOCAL_TARGET, seed=seed)
        yield _row("deepseek-v2-lite", replace(problem, slots_per_gpu=slots), solution)


def _solved(name: str, problem: Problem, *, seed: int, limit_s: float | None) -> tuple[object, ...]:
    return _row(name, problem, solve(problem, seed=seed, time_limit_s=limit_s))


def _row(name: str, problem: Problem, solution: Solution) -> tuple[object, ...]:
    metrics = score(solution.layout, problem.demand, problem.topology, dispatch=problem.dispatch)
    local, bound = metrics.local_gpu, solution.bound.local_gpu
    known = local is not None and bound is not None and problem.objective is Objective.LOCALITY
    return (
        name,
        problem.topology.gpus,
        problem.topology.nodes,
        problem.slots_per_gpu,
        problem.objective.value,
        local if local is not None else "-",
        bound if known else "-",
        f"{100 * (1 - local / bound):.3f}" if known and local is not None and bound is not None else "-",
        metrics.worst_window.imbalance,
        solution.bound.imbalance or "-",
        solution.status.value,
        f"{solution.solve_seconds:.2f}",
        " ".join(notice.code for notice in solution.notices),
    )


if __name__ == "__main__":
    main()
