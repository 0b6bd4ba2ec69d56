"""One balanced layout for several workloads, beside EPLB: ``python -m tests.bench.balance``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from placement.baselines import plan_eplb
from placement.demand import Demand
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import score
from placement.solver import solve
from placement.topology import Topology
from tests.bench.support.recorded import DEEPSEEK_V3, recorded_demand, require_recordings
from tests.bench.support.tables import print_head, print_rows

GPUS, SLOTS_PER_GPU = 32, 9
WORKLOADS = ("prefill 1024", "prefill 4096", "decode")
COLUMNS = ("nodes", "planned on", "layout", *WORKLOADS, "bound", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    require_recordings()
    print_head(
        "DeepSeek-V3, 58 MoE layers x 256 experts, 288 slots on 32 GPUs: balancedness of one layout on each workload",
        protocol=(
            "objective balance; EPLB plans on the sum of the windows it is given; figures of workloads that were not "
            "planned on are marked *",
            "uniform sources, nearest-dynamic on 1 and 4 nodes; bound: 1 / the proven bound on the worst window",
            f"seed {chosen.seed}, no time limit, one thread",
        ),
    )
    print_rows(COLUMNS, _rows(seed=chosen.seed))


def _rows(*, seed: int) -> Iterator[tuple[object, ...]]:
    everything = recorded_demand(DEEPSEEK_V3, gpus=GPUS)
    for nodes in (1, 4):
        for windows in ([0, 1, 2], [0], [1, 2], [0, 2], [0, 1]):
            problem = Problem(
                everything.pick_windows(windows), Topology(GPUS, nodes), SLOTS_PER_GPU, objective=Objective.BALANCE
            )
            planned = " + ".join(WORKLOADS[window] for window in windows)
            solution = solve(problem, seed=seed)
            bound = solution.bound.imbalance
            ours = (1 / bound if bound else "-", solution.solve_seconds)
            for name, layout, rest in (
                ("eplb", plan_eplb(problem).layout, ("", "")),
                ("moeplan", solution.layout, ours),
            ):
                yield (nodes, planned, name, *_balancedness(layout, everything, problem, windows), *rest)


def _balancedness(layout: Layout, everything: Demand, problem: Problem, planned: list[int]) -> list[str]:
    metrics = score(layout, everything, problem.topology, dispatch=problem.dispatch)
    return [
        f"{1 / window.imbalance:.4f}{'' if index in planned else ' *'}" for index, window in enumerate(metrics.windows)
    ]


if __name__ == "__main__":
    main()
