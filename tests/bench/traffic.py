"""Copies per token of plans for traffic, beside all baselines: ``python -m tests.bench.traffic``.

DeepSeek-V2-Lite's token trace, planned on the first half of every task's requests and judged on the other half. The
null test does the same with every layer's choices dealt out to tokens anew, so that demand stays and co-activation
vanishes: what is gained there is not gained by it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from placement.comparison import compare
from placement.layout import Layout
from placement.problem import Objective, Problem
from placement.score import score, score_tokens
from placement.solver import solve
from placement.token_sample import TokenSample
from placement.tokens import Tokens
from placement.topology import Topology
from tests.bench.support.recorded import (
    DEEPSEEK_V2_LITE,
    demand_of_tokens,
    require_recordings,
    shuffled,
    tokens_apart,
)
from tests.bench.support.tables import print_head, print_rows

CAP = 1.10
BASELINES = ("trivial", "random", "eplb", "hot_replication")
COLUMNS = (
    "tokens", "GPUs", "x", *BASELINES, "locality", "traffic", "traffic / eplb", "worst: eplb", "traffic",
    "planned on", "proven", "s",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--factors", type=float, nargs="*", default=[1.0, 1.5, 2.0])
    parser.add_argument("--tokens", nargs="*", choices=["recorded", "shuffled"], default=["recorded", "shuffled"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    require_recordings()
    print_head(
        "gpus_per_token on requests that were not planned on: deepseek-v2-lite, uniform homes, one node",
        protocol=(
            f"planned on half of every task's requests as one window, cap {CAP} on its imbalance (locality and "
            "traffic), judged on the other half; same slots, same ruler, nearest-dynamic",
            "worst: imbalance on what was planned on; planned on: gpus_per_token of traffic there, and its bound",
            "shuffled: every layer's choices dealt out to tokens anew; aim: traffic 12 % below eplb at 1x, and no "
            "gain with shuffled tokens",
            f"seed {chosen.seed}, no time limit",
        ),
    )
    print_rows(COLUMNS, _rows(chosen))


def _rows(chosen: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    planned, judged = tokens_apart(DEEPSEEK_V2_LITE, held_out=0.5)
    one_window = [replace(half, window_T=half.window_T * 0) for half in (planned, judged)]
    for kind in chosen.tokens:
        halves = one_window if kind == "recorded" else [shuffled(half, seed=chosen.seed) for half in one_window]
        for gpus in chosen.gpus:
            for factor in chosen.factors:
                slots = round(factor * -(-planned.experts // gpus))
                yield kind, gpus, factor, *_compared(*halves, gpus, slots, seed=chosen.seed, threads=chosen.threads)


def _compared(planned: Tokens, judged: Tokens, gpus: int, slots: int, *, seed: int, threads: int) -> tuple[object, ...]:
    problem = Problem(
        demand_of_tokens(planned),
        Topology(gpus),
        slots,
        objective=Objective.TRAFFIC,
        max_imbalance=CAP,
        tokens=TokenSample(planned, recorded_tokens=planned.tokens),
    )
    local = solve(replace(problem, objective=Objective.LOCALITY, tokens=None), seed=seed, threads=threads)
    ours = solve(problem, seed=seed, threads=threads)
    layouts: dict[str, Layout] = dict(compare(problem, ours.layout, seed=seed).layouts)
    layouts = {**{name: layouts[name] for name in BASELINES}, "locality": local.layout, "traffic": ours.layout}
    found = score_tokens(layouts, [judged], problem.topology, dispatch=problem.dispatch)
    copies = {name: each.gpus_per_token or 0.0 for name, each in found.items()}
    seen = score_tokens({"traffic": ours.layout}, [planned], problem.topology, dispatch=problem.dispatch)["traffic"]
    worst = [
        score(layouts[name], problem.demand, problem.topology, dispatch=problem.dispatch).worst_window.imbalance
        for name in ("eplb", "traffic")
    ]
    bound = ours.bound.gpus_per_token
    return (
        *copies.values(),
        f"{copies['traffic'] / copies['eplb'] - 1:+.1%}",
        *worst,
        seen.gpus_per_token,
        "-" if bound is None else bound,
        f"{ours.solve_seconds:.0f}",
    )


if __name__ == "__main__":
    main()
