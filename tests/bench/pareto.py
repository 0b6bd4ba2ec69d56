"""Local share against imbalance, beside EPLB and hot replication: ``python -m tests.bench.pareto``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from placement.baselines import hot_replication, plan_eplb
from placement.demand import Demand
from placement.layout import Layout
from placement.problem import Problem
from placement.score import score
from placement.solver import solve
from placement.topology import Topology
from tests.bench.support.recorded import DEEPSEEK_V2_LITE, QWEN3_30B, recorded_demand, require_recordings
from tests.bench.support.tables import print_head, print_rows

CAPS = (1.0, 1.01, 1.02, 1.05, 1.1)
FACTORS = (1.5, 2.0, 3.0)
COLUMNS = (
    "recording", "GPUs", "slots", "x", "layout", "cap", "local_gpu", "worst window", "dominated by",
    "most local under eplb's", "under hot's",
)  # fmt: skip

Point = tuple[float, float]
"""Local share and the worst window's imbalance."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    require_recordings()
    print_head(
        "Local share against imbalance, uniform sources, one node, nearest-dynamic",
        protocol=(
            "deepseek-v2-lite: a window per task; qwen3-30b-a3b: a window per language; judged on what was planned on",
            "cap 1 and caps that cannot be reached: the smallest imbalance found; none: the number of GPUs",
            "a point dominates another when it is no less local, no less balanced, and better in one of the two",
            "the last columns: moeplan's local_gpu with a baseline's own imbalance as the cap, and the baseline's",
            f"seed {chosen.seed}, no time limit, one thread",
        ),
    )
    dominated: list[str] = []
    print_rows(COLUMNS, _rows(dominated, seed=chosen.seed))
    print("No point of moeplan is dominated." if not dominated else f"Dominated: {'; '.join(dominated)}.")


def _rows(dominated: list[str], *, seed: int) -> Iterator[tuple[object, ...]]:
    for name, files, window_by, all_gpus in (
        ("deepseek-v2-lite", DEEPSEEK_V2_LITE, "domain", (4, 8)),
        ("qwen3-30b-a3b", QWEN3_30B, "file", (8,)),
    ):
        for gpus in all_gpus:
            demand = recorded_demand(files, gpus=gpus, window_by=window_by)
            for factor in FACTORS:
                problem = Problem(demand, Topology(gpus), round(demand.experts / gpus * factor))
                yield from _front(name, factor, problem, dominated, seed=seed)


def _front(
    name: str, factor: float, problem: Problem, dominated: list[str], *, seed: int
) -> Iterator[tuple[object, ...]]:
    gpus = problem.topology.gpus
    where = (name, gpus, problem.slots_per_gpu, factor)
    baselines = {
        "eplb": _judge(plan_eplb(problem).layout, problem.demand, problem),
        "hot": _judge(hot_replication(problem), problem.demand, problem),
    }
    for baseline, point in baselines.items():
        yield (*where, baseline, "", *point, "", "", "")
    for cap in (*CAPS, float(gpus)):
        point = _planned(problem, cap=cap, seed=seed)
        better = [baseline for baseline, theirs in baselines.items() if dominates(theirs, point)]
        dominated += [f"{name} on {gpus} GPUs at {factor}x, cap {cap:g}, by {baseline}" for baseline in better]
        yield (*where, "moeplan", "none" if cap == gpus else f"{cap:g}", *point, ", ".join(better) or "-", "", "")
    at_theirs = []
    for baseline, theirs in baselines.items():
        point = _planned(problem, cap=theirs[1], seed=seed)
        if dominates(theirs, point):
            dominated.append(f"{name} on {gpus} GPUs at {factor}x, {baseline}'s imbalance, by {baseline}")
        at_theirs.append(f"{point[0]:.4f} ({theirs[0]:.4f})")
    yield (*where, "moeplan", "theirs", "", "", "", *at_theirs)


def _planned(problem: Problem, *, cap: float, seed: int) -> Point:
    solution = solve(replace(problem, max_imbalance=cap), seed=seed)
    return _judge(solution.layout, problem.demand, problem)


def _judge(layout: Layout, demand: Demand, problem: Problem) -> Point:
    metrics = score(layout, demand, problem.topology, dispatch=problem.dispatch)
    return metrics.local_gpu or 0.0, metrics.worst_window.imbalance


def dominates(a: Point, b: Point, *, rounding: float = 1e-9) -> bool:
    """Tell whether ``a`` is at least as good as ``b`` in both and better in one, beyond rounding."""
    no_worse = a[0] >= b[0] - rounding and a[1] <= b[1] + rounding
    return no_worse and (a[0] > b[0] + rounding or a[1] < b[1] - rounding)


if __name__ == "__main__":
    main()
