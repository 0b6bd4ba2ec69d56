"""What capped engines would reroute and drop, by capacity factor: ``python -m tests.bench.capacity``.

Every recording is planned on one part of its traffic and judged on another. Two tables: overflow of windows and, for
the token trace, of single steps of so many tokens, which is what an engine caps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from placement.baselines import BASELINES, plan_eplb
from placement.demand import Demand
from placement.layout import Layout
from placement.metrics import CapacityMetrics
from placement.problem import Objective, Problem
from placement.score import score, score_tokens
from placement.solver import solve
from placement.tokens import PHASE_NUMBERS, Tokens
from placement.topology import Topology
from tests.bench.support.recorded import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    MIXTRAL,
    QWEN3_30B,
    demand_of_tokens,
    recorded_demand,
    require_recordings,
    tokens_apart,
)
from tests.bench.support.tables import print_head, print_rows

FACTORS = (1.0, 1.25, 1.5, 2.0)
CAP = 1.05
COLUMNS = ("recording", "GPUs", "slots", "layout", *(f"{factor:g}" for factor in FACTORS))


@dataclass(frozen=True)
class Case:
    """A recording with what is planned on and judged on.

    Attributes
    ----------
    name : str
    planned, judged : Demand
    gpus, slots_per_gpu : int
    tokens : Tokens or None
        Those judged on, one by one.
    """

    name: str
    planned: Demand
    judged: Demand
    gpus: int
    slots_per_gpu: int
    tokens: Tokens | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-tokens", type=int, nargs="+", default=[64, 1024], help="tokens of a step, all GPUs")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    require_recordings()
    print_head(
        "Demand above capacity factor x mean GPU load: overflow (rerouted / dropped), in percent",
        protocol=(
            "planned on the first half (deepseek-v3: first workload, deepseek-v2-lite: half of every task's requests), "
            "judged on the rest; uniform homes, one node, nearest-dynamic",
            "rerouted: the most that other replicas can take under their own caps; dropped: the rest",
            f"moeplan: locality and balance at cap {CAP:g}; seed {chosen.seed}, no time limit",
        ),
    )
    cases = list(_cases())
    layouts = {case.name: _layouts(case, seed=chosen.seed) for case in cases}
    print_rows(COLUMNS, _windows(cases, layouts), title="Windows, by capacity factor")
    for size in chosen.step_tokens:
        print_rows(COLUMNS, _steps(cases, layouts, size), title=f"Steps of {size} tokens, by capacity factor")


def _cases() -> Iterator[Case]:
    v3 = recorded_demand(DEEPSEEK_V3, gpus=32)
    yield Case("deepseek-v3", v3.pick_windows([0]), v3.pick_windows([1, 2]), 32, 9)
    planned, judged = tokens_apart(DEEPSEEK_V2_LITE, held_out=0.5)
    yield Case("deepseek-v2-lite", demand_of_tokens(planned), demand_of_tokens(judged), 8, 12, judged)
    for name, files, gpus, slots in (("qwen3-30b-a3b", QWEN3_30B, 8, 24), ("mixtral-8x7b", MIXTRAL, 4, 4)):
        demand = recorded_demand(files, gpus=gpus)
        half = demand.windows // 2
        windows = list(range(demand.windows))
        yield Case(name, demand.pick_windows(windows[:half]), demand.pick_windows(windows[half:]), gpus, slots)


def _layouts(case: Case, *, seed: int) -> dict[str, Layout]:
    problem = Problem(case.planned, Topology(case.gpus), case.slots_per_gpu, max_imbalance=CAP)
    return {
        "trivial": BASELINES["trivial"](problem, seed=seed),
        "eplb": plan_eplb(problem).layout,
        "hot_replication": BASELINES["hot_replication"](problem, seed=seed),
        "moeplan locality": solve(problem, seed=seed).layout,
        "moeplan balance": solve(replace(problem, objective=Objective.BALANCE), seed=seed).layout,
    }


def _windows(cases: list[Case], layouts: Mapping[str, Mapping[str, Layout]]) -> Iterator[tuple[object, ...]]:
    for case in cases:
        for name, layout in layouts[case.name].items():
            metrics = score(layout, case.judged, Topology(case.gpus), dispatch=Problem.dispatch)
            by_factor = {each.capacity_factor: each for each in metrics.capacity}
            cells = (_cell(by_factor[factor]) for factor in FACTORS)
            yield (case.name, case.gpus, case.slots_per_gpu * case.gpus, name, *cells)


def _steps(cases: list[Case], layouts: Mapping[str, Mapping[str, Layout]], size: int) -> Iterator[tuple[object, ...]]:
    for case in cases:
        if case.tokens is None:
            continue
        stream = [in_steps(case.tokens, size)]
        found = {
            factor: score_tokens(
                layouts[case.name], stream, Topology(case.gpus), dispatch=Problem.dispatch, capacity_factor=factor
            )
            for factor in FACTORS
        }
        for name in layouts[case.name]:
            cells = (_cell(found[factor][name].step_overflow[0]) for factor in FACTORS)
            yield (case.name, case.gpus, case.slots_per_gpu * case.gpus, name, *cells)


def in_steps(tokens: Tokens, size: int) -> Tokens:
    """Return the tokens as decode steps of ``size`` tokens each, drawn from all requests alike; a last, smaller step
    is left out.
    """
    order = np.random.default_rng(0).permutation(tokens.tokens)[: tokens.tokens // size * size]
    mixed = tokens.pick(order)
    phase_T = np.full(mixed.tokens, PHASE_NUMBERS["decode"], dtype=np.uint8)
    return replace(mixed, step_T=np.arange(mixed.tokens) // size, phase_T=phase_T)


def _cell(found: CapacityMetrics) -> str:
    return f"{100 * found.overflow_share:.2f} ({100 * found.rerouted:.2f} / {100 * found.dropped:.2f})"


if __name__ == "__main__":
    main()
