"""The best worst window and what is proven of it, over many windows: ``python -m tests.bench.windows``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from placement.baselines import plan_eplb
from placement.bounds import (
    GpuContentsBound,
    SmallLayersBound,
    gpu_contents_bound,
    imbalance_bound,
    small_imbalance_bound,
)
from placement.problem import Objective, Problem
from placement.score import score
from placement.solver import solve
from placement.topology import Topology
from tests.bench.support.recorded import MIXTRAL, recorded_demand, require_recordings
from tests.bench.support.tables import print_head, print_rows

GPUS = 8
COLUMNS = ("slots", "layout", "worst window", "mean of windows", "local_gpu", "cap", "seconds")
PROVEN = ("slots", "counting", "contents of one GPU", "its mean of windows", "layers searched", "to the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[3, 4, 5], help="slots per GPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bound-seconds", type=float, default=60.0, help="effort for each bound; 60 takes minutes")
    chosen = parser.parse_args()
    require_recordings()
    demand = recorded_demand(MIXTRAL, gpus=GPUS)
    print_head(
        f"Mixtral 8x7B: {len(demand.moe_layers)} layers x {demand.experts} experts on {GPUS} GPUs of one node, one "
        f"layout for all {demand.windows} windows",
        protocol=(
            "uniform sources, nearest-dynamic; EPLB plans on the sum of the windows; figures are the ruler's",
            "mean of windows: weighted by tokens, that is the sum of the windows' largest loads over that of the means",
            "locality at cap 1.05: where that is out of reach the smallest imbalance found is the cap",
            f"seed {chosen.seed}, no time limit, one thread; bounds with an effort of {chosen.bound_seconds:g} s each",
        ),
    )
    problems = [Problem(demand, Topology(GPUS), slots, objective=Objective.BALANCE) for slots in chosen.slots]
    print_rows(COLUMNS, _plans(problems, seed=chosen.seed), title="Plans")
    print_rows(PROVEN, _bounds(problems, effort_s=chosen.bound_seconds), title="No layout is below (worst window)")


def _plans(problems: list[Problem], *, seed: int) -> Iterator[tuple[object, ...]]:
    for problem in problems:
        local = replace(problem, objective=Objective.LOCALITY)
        balanced, localised = solve(problem, seed=seed), solve(local, seed=seed)
        eplb = plan_eplb(problem).layout
        for name, layout, cap, seconds in (
            ("eplb", eplb, "", ""),
            ("moeplan balance", balanced.layout, "", balanced.solve_seconds),
            ("moeplan locality", localised.layout, localised.max_imbalance, localised.solve_seconds),
        ):
            metrics = score(layout, problem.demand, problem.topology, dispatch=problem.dispatch)
            tokens_W = problem.demand.tokens_WLE.sum(axis=(1, 2))
            imbalance_W = [window.imbalance for window in metrics.windows]
            mean = float(tokens_W @ imbalance_W) / float(tokens_W.sum())
            local_gpu = "-" if metrics.local_gpu is None else metrics.local_gpu
            yield (problem.slots_per_gpu, name, metrics.worst_window.imbalance, mean, local_gpu, cap, seconds)


def _bounds(problems: list[Problem], *, effort_s: float) -> Iterator[tuple[object, ...]]:
    for problem in problems:
        tokens_W = problem.demand.tokens_WLE.sum(axis=(1, 2))
        counted = imbalance_bound(problem.demand, problem.topology, problem.slots_per_gpu, problem.dispatch)
        searched = small_imbalance_bound(problem, effort_s=effort_s)
        ended = "" if searched is None else f"{int(searched.optimal_L.sum())} of {len(searched.optimal_L)} layers"
        yield (
            problem.slots_per_gpu,
            counted.imbalance,
            _value(gpu_contents_bound(problem, effort_s=effort_s)),
            _value(gpu_contents_bound(problem, window_price_W=tokens_W, effort_s=effort_s, most_rounds=1)),
            _value(searched),
            ended,
        )


def _value(bound: GpuContentsBound | SmallLayersBound | None) -> float | str:
    return "too many" if bound is None else bound.value


if __name__ == "__main__":
    main()
