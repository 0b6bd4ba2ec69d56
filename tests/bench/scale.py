"""The largest plans: time, memory and quality, alone and on workers: ``python -m tests.bench.scale``."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np

from api.workers import FanOut, Workers, open_workers
from placement.demand import Demand
from placement.problem import Objective, Problem
from placement.score import score
from placement.solver import solve
from placement.topology import Topology
from tests.bench.support.tables import print_head, print_rows

COLUMNS = (
    "nodes", "objective", "limit s", "workers", "seconds", "peak MiB", "of a worker", "worst imbalance", "proven >=",
    "local_gpu", "proven <=", "gap", "layout",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One plan to be made in a process of its own."""

    layers: int
    experts: int
    gpus: int
    slots_per_gpu: int
    windows: int
    seed: int
    nodes: int = 1
    objective: Objective = Objective.BALANCE
    limit_s: float | None = None
    workers: Workers = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("layers", 94), ("experts", 384), ("gpus", 72), ("slots-per-gpu", 8), ("windows", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--nodes", type=int, default=9, help="nodes of the second topology; the first is one node")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds, for the rows with a limit")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    os.environ.setdefault("RAY_ADDRESS", "local")  # a cluster of this run's own, not one that others may end
    base = Case(chosen.layers, chosen.experts, chosen.gpus, chosen.slots_per_gpu, chosen.windows, chosen.seed)
    print_head(
        f"{base.layers} layers x {base.experts} experts on {base.gpus} GPUs with {base.slots_per_gpu} slots each, "
        f"{base.windows} windows",
        protocol=(
            "every plan in a fresh process, one thread each; seconds with the start of the workers, without reading",
            "synthetic demand: an expert's load log-normal (sigma 0.8) times log-normal (sigma 0.5) per window; "
            "uniform sources, nearest-dynamic, imbalance cap 1.05 for locality",
            "peak: resident memory of the planning process, and the largest of its worker processes",
            "gap: to the proven bound of the objective's own figure; layout: equal names are equal bytes",
            f"seed {base.seed}; limit: {chosen.limit:g} s or none",
        ),
    )
    print_rows(COLUMNS, _rows(base, nodes=chosen.nodes, limit_s=chosen.limit))


def _rows(base: Case, *, nodes: int, limit_s: float) -> Iterator[tuple[object, ...]]:
    for case in _cases(base, nodes=nodes, limit_s=limit_s):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as alone:
            yield alone.submit(_row, case).result()


def _cases(base: Case, *, nodes: int, limit_s: float) -> Iterator[Case]:
    for count in (1, nodes):
        for objective in (Objective.BALANCE, Objective.LOCALITY):
            for limit in (limit_s, None):
                yield replace(base, nodes=count, objective=objective, limit_s=limit)
    shared: list[Workers] = [2, "ray"] if find_spec("ray") else [2]
    for workers in shared:
        for count in (1, nodes):
            yield replace(base, nodes=count, workers=workers)


def _row(case: Case) -> tuple[object, ...]:
    problem = Problem(_demand(case), Topology(case.gpus, case.nodes), case.slots_per_gpu, objective=case.objective)
    started_s = time.perf_counter()
    with open_workers(case.workers) as crew:
        map_tasks = None if crew is None else FanOut(crew)
        solution = solve(problem, seed=case.seed, time_limit_s=case.limit_s, map_tasks=map_tasks)
    seconds = time.perf_counter() - started_s
    metrics = score(solution.layout, problem.demand, problem.topology, dispatch=problem.dispatch)
    worst, bound = metrics.worst_window.imbalance, solution.bound
    if case.objective is Objective.BALANCE:
        gap = None if bound.imbalance is None else worst / bound.imbalance - 1
    else:
        known = bound.local_gpu is not None and metrics.local_gpu is not None
        gap = 1 - metrics.local_gpu / bound.local_gpu if known else None
    return (
        case.nodes,
        case.objective.value,
        "-" if case.limit_s is None else f"{case.limit_s:g}",
        case.workers,
        f"{seconds:.1f}",
        _peak_mib(resource.RUSAGE_SELF),
        _peak_mib(resource.RUSAGE_CHILDREN) if isinstance(case.workers, int) and case.workers > 1 else "-",
        worst,
        "-" if bound.imbalance is None else bound.imbalance,
        "-" if metrics.local_gpu is None else metrics.local_gpu,
        "-" if bound.local_gpu is None else bound.local_gpu,
        "-" if gap is None else f"{gap:.2%}",
        solution.layout.hash[:8],
    )


def _demand(case: Case) -> Demand:
    generator = np.random.default_rng(case.seed)
    usual_LE = generator.lognormal(sigma=0.8, size=(case.layers, case.experts))
    tokens_WLE = usual_LE * generator.lognormal(sigma=0.5, size=(case.windows, case.layers, case.experts)) * 1e4
    names = tuple(f"window {index}" for index in range(case.windows))
    return Demand(tokens_WLE.astype(np.int64)[:, :, None, :], "uniform", names)


def _peak_mib(who: int) -> int:
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit_bytes // 2**20


if __name__ == "__main__":
    main()
