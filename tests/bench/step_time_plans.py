"""Predicted time of a MoE layer under plans for it and under all baselines: ``python -m tests.bench.step_time_plans``.

DeepSeek-V2-Lite's token trace, planned on the first half of every task's requests and judged on the other half, with
the copies of both counted on their tokens. ``from counts`` is the plan for step time that does not see tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

from placement.baselines import BASELINES, plan_eplb
from placement.hardware import Phase
from placement.layout import Layout
from placement.model_shape import ModelShape
from placement.problem import Objective, Problem
from placement.score import score, traced_moe_layer_time
from placement.solver import solve
from placement.step_time import USUAL_TOKENS, Step
from placement.token_sample import TokenSample
from placement.tokens import Tokens
from placement.topology import Topology
from profiler.hardware import read_hardware
from profiler.model_file import read_model_config
from tests.bench.support.recorded import DEEPSEEK_V2_LITE, demand_of_tokens, require_recordings, tokens_apart
from tests.bench.support.tables import print_head, print_rows

CAP = 1.10
NAMES = ("trivial", "eplb", "hot_replication", "locality", "traffic", "from counts", "step-time")
COLUMNS = ("phase", "GPUs", "x", "on", *NAMES, "proven", "imbalance", "local_gpu", "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--factors", type=float, nargs="*", default=[1.0, 1.5, 2.0])
    parser.add_argument("--phases", nargs="*", choices=["prefill", "decode"], default=["prefill", "decode"])
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    require_recordings()
    print_head(
        f"Predicted microseconds of a MoE layer on {chosen.hardware}: deepseek-v2-lite, uniform homes, one node",
        protocol=(
            f"planned on half of every task's requests as one window, locality and traffic at cap {CAP:g}, judged on "
            "the other half; same slots, same ruler, nearest-dynamic",
            "prefill of 8192 tokens per GPU, a token sent once per GPU; decode of 128, once per expert",
            f"imbalance, local_gpu: of the plan for step time; seed {chosen.seed}, no time limit",
        ),
    )
    print_rows(COLUMNS, _rows(chosen))


def _rows(chosen: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    planned_on, judged_on = tokens_apart(DEEPSEEK_V2_LITE, held_out=0.5)
    for phase in chosen.phases:
        for gpus in chosen.gpus:
            for factor in chosen.factors:
                yield from _case(planned_on, judged_on, phase, gpus, factor, chosen)


def _case(
    planned_on: Tokens, judged_on: Tokens, phase: Phase, gpus: int, factor: float, chosen: argparse.Namespace
) -> Iterator[tuple[object, ...]]:
    model = ModelShape.from_config(read_model_config("deepseek-v2-lite"))
    step = Step(read_hardware(chosen.hardware), phase, model.expert, model.top_k, USUAL_TOKENS[phase])
    problem = Problem(
        demand_of_tokens(planned_on),
        Topology(gpus),
        round(factor * planned_on.experts / gpus),
        max_imbalance=CAP,
        objective=Objective.STEP_TIME,
        step=step,
        tokens=TokenSample(_one_window(planned_on), planned_on.tokens),
    )
    started_s = time.perf_counter()
    solution = solve(problem, seed=chosen.seed)
    took_s = time.perf_counter() - started_s
    layouts: dict[str, Layout] = {name: BASELINES[name](problem, seed=chosen.seed) for name in BASELINES}
    layouts |= {"eplb": plan_eplb(problem).layout, **solution.beside}
    layouts["from counts"] = solve(replace(problem, tokens=None), seed=chosen.seed).layout
    layouts["step-time"] = solution.layout
    proven = solution.bound.moe_layer_s
    for name, tokens in (("planned on", planned_on), ("other half", judged_on)):
        demand, stream = demand_of_tokens(tokens), [_one_window(tokens)]
        cells = []
        for each in NAMES:
            if each not in layouts:  # decode has no plan for traffic
                cells.append("-")
                continue
            seconds = traced_moe_layer_time(
                layouts[each], demand, problem.topology, dispatch=problem.dispatch, step=step, stream=stream
            )
            cells.append(f"{1e6 * seconds.moe_layer_s:.1f}")
        metrics = score(solution.layout, demand, problem.topology, dispatch=problem.dispatch)
        bound = f"{1e6 * proven:.1f}" if proven is not None and tokens is planned_on else ""
        yield (
            *(phase, gpus, factor, name, *cells, bound, metrics.imbalance, metrics.local_gpu or 0.0),
            f"{took_s:.0f}" if tokens is planned_on else "",
        )


def _one_window(tokens: Tokens) -> Tokens:
    return replace(tokens, window_T=tokens.window_T * 0)


if __name__ == "__main__":
    main()
