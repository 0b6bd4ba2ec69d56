"""What each part of the solver buys: ``python -m tests.bench.ablations``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from placement.demand import Demand
from placement.diff import diff
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import score
from placement.solution import Solution
from placement.solver import solve
from placement.topology import Topology
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.recordings import MIXED, recording_path
from profiler.windows import WindowBy, build_demand
from tests.bench.support.recorded import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    MIXTRAL,
    QWEN3_30B,
    demand_at_home,
    recorded_demand,
    requests_apart,
    require_recordings,
)
from tests.bench.support.tables import print_head, print_rows

COLUMNS = (
    "part", "recording", "GPUs", "slots", "objective", "planned", "local_gpu", "worst window", "gap %", "moved",
    "status", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Plans that differ in one thing, judged on the same demand by the same ruler."""

    part: str
    recording: str
    problem: Problem
    running: Layout | None = None

    def row(self, planned: str, solution: Solution, *, gap: str = "-") -> tuple[object, ...]:
        problem = self.problem
        metrics = score(solution.layout, problem.demand, problem.topology, dispatch=problem.dispatch)
        moved = "-"
        if self.running is not None:
            moved = str(diff(self.running, solution.layout, moe_layers=problem.demand.moe_layers).moved_slots)
        return (
            self.part, self.recording, problem.topology.gpus, problem.slots_per_gpu, str(problem.objective), planned,
            metrics.local_gpu or 0.0, metrics.worst_window.imbalance, gap, moved, str(solution.status),
            f"{solution.solve_seconds:.1f}",
        )  # fmt: skip

    def gap(self, solution: Solution) -> str:
        """Return how far the objective's figure is from its bound, in percent."""
        metrics = score(solution.layout, self.problem.demand, self.problem.topology, dispatch=self.problem.dispatch)
        bound = solution.bound
        if self.problem.objective is Objective.BALANCE:
            return "-" if not bound.imbalance else f"{100 * (metrics.worst_window.imbalance / bound.imbalance - 1):.3f}"
        return "-" if not bound.local_gpu else f"{100 * (1 - (metrics.local_gpu or 0.0) / bound.local_gpu):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    require_recordings()
    print_head(
        "What each part of the solver buys, one node, nearest-dynamic, cap 1.05 on the worst window for locality",
        protocol=(
            "robustness: planned on the recording's windows, or on their sum; judged on the windows",
            "sources: every task on GPUs of its own; planned with home GPUs or as if uniform; judged with home GPUs",
            "CP-SAT: the exact stage on small layers as usual or with 0 deterministic seconds; Mixtral's windows "
            "merged, tiny-moe's 16 tasks as windows; gap: of the objective's figure to the proven bound",
            "stickiness: planned for other traffic than what the running plan was made for; with that as the current "
            "layout, without it, and within a tenth of the moves: qwen3's last four languages after its first four, "
            "deepseek-v3's other two workloads after prefill-1024, the last half of deepseek-v2-lite's requests",
            f"seed {chosen.seed}, no time limit, one thread",
        ),
    )
    print_rows(COLUMNS, _rows(seed=chosen.seed))


def _rows(*, seed: int) -> Iterator[tuple[object, ...]]:
    yield from _robustness(seed=seed)
    yield from _sources(seed=seed)
    yield from _exact(seed=seed)
    yield from _stickiness(seed=seed)


def _robustness(*, seed: int) -> Iterator[tuple[object, ...]]:
    for name, files, window_by, gpus, slots, objective in (
        ("deepseek-v3", DEEPSEEK_V3, "file", 32, 9, Objective.BALANCE),
        ("deepseek-v3", DEEPSEEK_V3, "file", 32, 9, Objective.LOCALITY),
        ("qwen3-30b-a3b", QWEN3_30B, "file", 8, 24, Objective.LOCALITY),
        ("deepseek-v2-lite", DEEPSEEK_V2_LITE, "domain", 8, 16, Objective.LOCALITY),
    ):
        demand = recorded_demand(files, gpus=gpus, window_by=window_by)
        case = Case("robustness", name, Problem(demand, Topology(gpus), slots, objective=objective))
        yield case.row("on their sum", solve(replace(case.problem, demand=_merged(demand)), seed=seed))
        yield case.row("on the windows", solve(case.problem, seed=seed))


def _sources(*, seed: int) -> Iterator[tuple[object, ...]]:
    for gpus in (4, 8):
        demand = demand_at_home(DEEPSEEK_V2_LITE, gpus=gpus)
        uniform = Demand(demand.tokens_WLSE.sum(axis=2, keepdims=True), "uniform", demand.window_names)
        for factor in (1.25, 2.0):
            problem = Problem(demand, Topology(gpus), round(demand.experts / gpus * factor))
            case = Case("sources", "deepseek-v2-lite", problem)
            yield case.row("as if uniform", solve(replace(problem, demand=uniform), seed=seed))
            yield case.row("with home GPUs", solve(problem, seed=seed))


def _exact(*, seed: int) -> Iterator[tuple[object, ...]]:
    tiny = open_inputs([recording_path(MIXED)], ReadOptions())
    for name, demand, gpus, slots in (
        ("mixtral-8x7b", _merged(recorded_demand(MIXTRAL, gpus=4)), 4, 3),
        ("mixtral-8x7b", _merged(recorded_demand(MIXTRAL, gpus=4)), 4, 4),
        ("tiny-moe", build_demand(tiny, window_by=WindowBy.parse("domain"), gpus=2).demand, 2, 20),
        ("tiny-moe", build_demand(tiny, window_by=WindowBy.parse("domain"), gpus=4).demand, 4, 12),
    ):
        for objective in (Objective.LOCALITY, Objective.BALANCE):
            case = Case("CP-SAT", name, Problem(demand, Topology(gpus), slots, objective=objective))
            for planned, seconds in (("without", 0.0), ("with", None)):
                solution = solve(case.problem, seed=seed, exact_seconds=seconds)
                yield case.row(planned, solution, gap=case.gap(solution))


def _stickiness(*, seed: int) -> Iterator[tuple[object, ...]]:
    qwen3 = recorded_demand(QWEN3_30B, gpus=8)
    v3 = recorded_demand(DEEPSEEK_V3, gpus=32)
    for name, first, last, gpus, slots, objective in (
        (
            "qwen3-30b-a3b",
            qwen3.pick_windows([0, 1, 2, 3]),
            qwen3.pick_windows([4, 5, 6, 7]),
            8,
            24,
            Objective.LOCALITY,
        ),
        ("deepseek-v3", v3.pick_windows([0]), v3.pick_windows([1, 2]), 32, 9, Objective.LOCALITY),
        ("deepseek-v3", v3.pick_windows([0]), v3.pick_windows([1, 2]), 32, 9, Objective.BALANCE),
        ("deepseek-v2-lite", *requests_apart(DEEPSEEK_V2_LITE, held_out=0.5), 8, 16, Objective.LOCALITY),
    ):
        before = Problem(first, Topology(gpus), slots, objective=objective)
        running = solve(before, seed=seed)
        problem = replace(before, demand=last)
        case = Case("stickiness", name, problem, running.layout)
        sticky = replace(problem, current=running.layout)
        moves = solve(problem, seed=seed)
        tenth = diff(running.layout, moves.layout, moe_layers=last.moe_layers).moved_slots // 10
        yield case.row("nothing moves", running)
        yield case.row("without current", moves)
        yield case.row("with current", solve(sticky, seed=seed))
        yield case.row("a tenth of the moves", solve(replace(sticky, max_moved_slots=tenth), seed=seed))


def _merged(demand: Demand) -> Demand:
    """Add up the windows."""
    return Demand(np.sum(demand.tokens_WLSE, axis=0, keepdims=True), demand.sources, ("all",))


if __name__ == "__main__":
    main()
