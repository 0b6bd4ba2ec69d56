"""Solving time against size, beside SGLang's own EPLB in the same run: ``python -m tests.bench.scaling``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median

import numpy as np

from placement.demand import Demand
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import score
from placement.solution import Solution
from placement.solver import solve
from placement.topology import Topology
from tests.bench.peers.sglang_eplb import SGLANG_VERSION, run_sglang_eplb
from tests.bench.support.recorded import DEEPSEEK_V3, recorded_demand, require_recordings
from tests.bench.support.tables import print_head, print_rows

COLUMNS = (
    "demand", "layers", "experts", "GPUs", "slots", "sglang s", "sglang balancedness", "ours in that time, s",
    "balancedness in that time", "ours in twice that, s", "balancedness in twice that", "ours s", "balancedness",
)  # fmt: skip
LIMITS = (0.75, 1.75)
"""Limits as parts of SGLang's time: a plan ends a little after its limit, at the end of the step it is in."""
SIZES = (
    (58, 64, 8),
    (58, 128, 8),
    (58, 256, 8),
    (58, 256, 16),
    (58, 256, 32),
    (58, 256, 72),
    (58, 384, 72),
    (29, 256, 32),
    (94, 384, 72),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    require_recordings()
    print_head(
        "Seconds of one single-window balance plan",
        protocol=(
            f"sglang: the deepseek algorithm of SGLang {SGLANG_VERSION}'s wheel, global policy, torch on one thread",
            f"median of {chosen.runs} runs each, one thread; judged by the ruler, one node, nearest-dynamic",
            "in that time, in twice that: limited to 0.75 and 1.75 times sglang's median seconds; then without limit",
            "balancedness: the worst of the runs",
            "synthetic demand: every layer's experts drawn from a log-normal (sigma 0.8); 1/8 of the experts "
            "redundant, rounded up to fill the GPUs",
            f"seed {chosen.seed}",
        ),
    )
    print_rows(COLUMNS, _rows(runs=chosen.runs, seed=chosen.seed))


def _rows(*, runs: int, seed: int) -> Iterator[tuple[object, ...]]:
    recorded = recorded_demand(DEEPSEEK_V3[:1], gpus=32)
    yield _row("deepseek-v3 prefill 1024", recorded, gpus=32, slots_per_gpu=9, runs=runs, seed=seed)
    for layers, experts, gpus in SIZES:
        drawn_LE = np.random.default_rng(seed).lognormal(sigma=0.8, size=(layers, experts)) * 1e4
        slots_per_gpu = -(-(experts + experts // 8) // gpus)
        yield _row(
            "synthetic",
            Demand.uniform(drawn_LE.astype(np.int64)),
            gpus=gpus,
            slots_per_gpu=slots_per_gpu,
            runs=runs,
            seed=seed,
        )


def _row(name: str, demand: Demand, *, gpus: int, slots_per_gpu: int, runs: int, seed: int) -> tuple[object, ...]:
    problem = Problem(demand, Topology(gpus), slots_per_gpu, objective=Objective.BALANCE)
    moe_layers = list(demand.moe_layers)
    tokens_LE = demand.tokens_WLE.sum(axis=0)[moe_layers]
    peer = run_sglang_eplb(tokens_LE, slots=problem.slots, gpus=gpus, runs=runs)
    peer_demand = Demand.uniform(tokens_LE)
    theirs = score(
        Layout(peer.slots_LP.astype(np.int32), gpus=gpus, experts=demand.experts), peer_demand, problem.topology,
        dispatch=problem.dispatch,
    ).balancedness  # fmt: skip
    limited = [[solve(problem, seed=seed, time_limit_s=peer.median_s * part) for _ in range(runs)] for part in LIMITS]
    ours = [solve(problem, seed=seed) for _ in range(runs)]
    sizes = (len(moe_layers), demand.experts, gpus, problem.slots)
    figures = (figure for solutions in (*limited, ours) for figure in _figures(solutions, problem))
    return (name, *sizes, peer.median_s, theirs, *figures)


def _figures(solutions: list[Solution], problem: Problem) -> tuple[float, float]:
    """Return the median seconds and the worst balancedness of several runs."""
    judged = (score(each.layout, problem.demand, problem.topology, dispatch=problem.dispatch) for each in solutions)
    balancedness = min(metrics.balancedness for metrics in judged)
    return median(each.solve_seconds for each in solutions), balancedness


if __name__ == "__main__":
    main()
