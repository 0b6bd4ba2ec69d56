"""Plans per minute against workers, with and without Ray, and what holds them up: ``python -m tests.bench.scale_out``.

Two API replicas and workers on PostgreSQL plan many engines of DeepSeek-V3's shape side by side; the search of a plan
runs in the plan's own process, or on a Ray cluster of two processes on this machine. Layouts of all rows are compared.
Needs PostgreSQL, and Ray for its rows.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from tests.bench.support.plan_cost import PlanCost, cost_of_plan
from tests.bench.support.replay_fleet import EXPERTS, GPUS, LAYERS, SLOTS_PER_GPU, first_layout, recording_of
from tests.bench.support.scale_out import (
    RAY_NODES,
    REPLICAS,
    Installation,
    Planned,
    SearchOn,
    installed,
    ray_cluster,
)
from tests.bench.support.tables import print_head, print_rows
from tests.postgres import MISSING, server_programs

BUSY = 0.85
"""Of the cores' time: above it more workers on this machine do no more."""

COLUMNS = (
    "search on", "workers", "plans/min", "job s", "solver s", "waited s", "longest", "CPU s a plan", "of workers",
    "Ray", "API", "database", "machine busy", "resumed", "lost", "layouts",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--search-on", nargs="+", choices=get_args(SearchOn), default=list(get_args(SearchOn)))
    parser.add_argument("--nodes", type=int, default=1, help="of every engine's 32 GPUs; 4 take three times as long")
    parser.add_argument("--objective", choices=("locality", "balance"), default="balance")
    parser.add_argument("--time-limit", type=float, help="seconds for each plan; then layouts depend on the clock")
    parser.add_argument("--kill", action="store_true", help="one more row: a worker of the last one killed in a search")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    programs = server_programs()
    if programs is None:
        print(MISSING, file=sys.stderr)
        return 2
    if "ray" in asked.search_on and find_spec("ray") is None:
        print("Ray is not installed (extra moeplan[ray]): choose --search-on 'own process'.", file=sys.stderr)
        return 2
    options: dict[str, Any] = {"objective": asked.objective, "seed": asked.seed}
    if asked.time_limit is not None:
        options["time_limit_s"] = asked.time_limit
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing that was started outlives this
    _print_head(asked)
    with tempfile.TemporaryDirectory(prefix="moeplan-bench-") as folder:
        cost = cost_of_plan(
            recording_of(Path(folder), 0, seed=asked.seed), Path(folder), gpus=GPUS, nodes=asked.nodes,
            slots_per_gpu=SLOTS_PER_GPU, current=str(first_layout(Path(folder))), **options,
        )  # fmt: skip
        with installed(Path(folder), programs, engines=asked.engines, nodes=asked.nodes, seed=asked.seed) as made:
            runs = []
            for run in _runs(made, asked, options):
                runs.append(run)
                print(f"{run[0]}, {run[1]}: {run[2].seconds:.0f} s", file=sys.stderr, flush=True)
    print_rows(COLUMNS, _rows(runs))
    _print_cost(cost)
    print(_bottleneck(runs, cost))
    same = len({planned.layouts for _, _, planned in runs}) == 1
    print("All rows have the same layouts." if same else "LAYOUTS DIFFER between rows.")
    return 0 if same or asked.time_limit is not None else 1


def _print_head(asked: argparse.Namespace) -> None:
    limit = "none" if asked.time_limit is None else f"{asked.time_limit:g} s"
    print_head(
        f"{asked.engines} engines of {LAYERS} layers x {EXPERTS} experts planned side by side",
        protocol=(
            f"{REPLICAS} API replicas and the workers, one job each at a time, on one PostgreSQL; requests by turns",
            f"every engine: {GPUS} GPUs ({asked.nodes} x {GPUS // asked.nodes}), {SLOTS_PER_GPU} slots each, a replay "
            f"engine that stands still; its recording: synthetic counts of 3 windows, log-normal, seed {asked.seed}",
            f"{asked.objective}, time limit {limit}, beside the layout that runs; all plans asked for at once",
            f"ray: a cluster of {RAY_NODES} nodes with one CPU each on this machine, joined anew by every plan",
            "resumed: jobs that a second worker finished; lost: plans whose search lost a task to a dead worker",
            "job, solver, waited: medians; longest: of the waits; CPU s a plan: all processes of the installation",
            "machine busy: of all cores, by anything; layouts: equal names are equal bytes for every engine",
        ),
    )


def _runs(
    made: Installation, asked: argparse.Namespace, options: dict[str, Any]
) -> Iterator[tuple[SearchOn, str, Planned]]:
    for search_on in asked.search_on:
        with ray_cluster(made) if search_on == "ray" else nullcontext():
            for count in asked.workers:
                with made.workers(count, search_on=search_on):
                    yield search_on, str(count), made.plan_all(options)
            if asked.kill:
                count = max(2, *asked.workers, 2)
                with made.workers(count, search_on=search_on) as workers:
                    yield search_on, f"{count}, one killed", made.plan_all(options, kill=workers[0])


def _rows(runs: Sequence[tuple[SearchOn, str, Planned]]) -> Iterator[tuple[object, ...]]:
    for search_on, workers, planned in runs:
        plans = len(planned.plans)
        spent_s = {kind: f"{seconds / plans:.2f}" for kind, seconds in planned.cpu_s.items()}
        yield (
            search_on, workers, f"{60 * plans / planned.seconds:.1f}", f"{statistics.median(planned.job_s):.1f}",
            f"{statistics.median(planned.solve_s):.1f}", f"{statistics.median(planned.waited_s):.1f}",
            f"{max(planned.waited_s):.1f}", f"{sum(planned.cpu_s.values()) / plans:.2f}", spent_s["workers"],
            spent_s.get("ray", "-"), spent_s["api"], spent_s["database"],
            f"{planned.machine_s / planned.seconds / (os.cpu_count() or 1):.0%}", planned.resumed, planned.lost,
            hashlib.sha256("".join(planned.layouts).encode()).hexdigest()[:8],
        )  # fmt: skip


def _print_cost(cost: PlanCost) -> None:
    parts = [(name.removesuffix("_s"), seconds) for name, seconds in asdict(cost).items()]
    rows = [(name, f"{seconds:.2f}", f"{seconds / cost.total_s:.0%}") for name, seconds in parts]
    print_rows(("part of one plan", "CPU s", "share"), [*rows, ("all", f"{cost.total_s:.2f}", "100%")])


def _bottleneck(runs: Sequence[tuple[SearchOn, str, Planned]], cost: PlanCost) -> str:
    """Say what plans wait for, as measured."""
    search_on, workers, planned = max(runs, key=lambda run: len(run[2].plans) / run[2].seconds)
    busy = planned.machine_s / planned.seconds / (os.cpu_count() or 1)
    spent_s = sum(planned.cpu_s.values())
    share = {kind: seconds / spent_s for kind, seconds in planned.cpu_s.items()}
    in_plans = share["workers"] + share.get("ray", 0.0)
    waits = "the cores" if busy > BUSY else "something else than the cores"
    return (
        f"Bottleneck in the fastest row ({search_on}, {workers}): {waits}, busy {busy:.0%}. Of the installation's CPU "
        f"time {in_plans:.0%} is in plans, {share['api']:.1%} in the API, {share['database']:.1%} in the database; of "
        f"a plan's {(cost.search_s + cost.solver_s) / cost.total_s:.0%} is the solver, "
        f"{cost.search_s / cost.total_s:.0%} its search, which workers can share, and "
        f"{cost.start_s / cost.total_s:.0%} the start of its process."
    )


if __name__ == "__main__":
    sys.exit(main())
