"""Acceptance of serving on 8, 4 or 2 GPUs: throughput and latency under load with SGLang's layouts and moeplan's.

    tests/gpu/run.sh KIT serving --gpus 8 --out OUT [--model mixtral] [--attention plain] [--homes domain,random]
        [--mixes ...] [--concurrency 256,512] [--window-seconds S] [--rounds N] [--budget-seconds S]

tp = ep = DP attention = GPUS behind the all-to-all. A recording and a hardware profile are taken on a first engine;
plans are made from one half of the prompts, engines started with the slots chosen, layouts pushed live and measured on
the other half. ``OUT/results.jsonl`` gets every finding as soon as it is made, ``OUT/table.md`` the summary. Exit code
1: a stage failed, or a request did.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.gpu.grid_cases import DOMAIN_HOMES, RANDOM_HOMES
from tests.gpu.machine import gpu_machine
from tests.gpu.results import Results, run_stages
from tests.gpu.server import EnginePool
from tests.gpu.serving_cases import MIXES, SCALES, ServingScale, checkpoint_name
from tests.gpu.serving_run import Serving, Wanted
from tests.gpu.serving_tables import serving_table

HOMES_BY_WORD = {"domain": DOMAIN_HOMES, "random": RANDOM_HOMES}


def main(arguments: list[str] | None = None) -> int:
    """Run all stages; return 1 when one of them or a request failed, 2 for options that mean nothing."""
    options = _parser().parse_args(arguments)
    homes, mixes = options.homes.split(","), options.mixes.split(",")
    for words, known, what in ((homes, HOMES_BY_WORD, "homes"), (mixes, MIXES, "mixes")):
        unknown = [word for word in words if word not in known]
        if unknown:
            print(f"there are no {what} {unknown[0]!r}; {what} are {', '.join(known)}.", file=sys.stderr)
            return 2
    try:
        scale = _scale(options)
    except ValueError:
        print(f"--concurrency is {options.concurrency!r}; give whole numbers like 256,512.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # engines are stopped on the way out
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out, options.budget_seconds)
    machine = gpu_machine(options.root, gpus=options.gpus)
    attentions = ["plain"] if options.model == "mixtral" or options.attention == "plain" else ["mla", "plain"]
    checkpoints = [checkpoint_name(options.model, attention, gpus=options.gpus) for attention in attentions]
    wanted = Wanted([HOMES_BY_WORD[word] for word in homes], mixes, tuple(options.server_argument))
    with EnginePool(machine, options.out) as pool:
        serving = Serving(machine, scale, results, pool, checkpoints=checkpoints, wanted=wanted)
        run_stages(serving.stages(), results, wanted=None, table=lambda found: serving_table(found, gpus=options.gpus))
    print(serving_table(results.found, gpus=options.gpus), flush=True)
    failed_requests = sum(finding["failed"] for finding in results.of("requests"))
    return 1 if results.failed_stages or failed_requests else 0


def _scale(options: argparse.Namespace) -> ServingScale:
    scale = SCALES[options.gpus]
    if options.concurrency:
        scale = replace(scale, concurrency=tuple(int(word) for word in options.concurrency.split(",")))
    if min(scale.concurrency) < 1:
        raise ValueError(options.concurrency)
    return replace(scale, window_s=options.window_seconds or scale.window_s, rounds=options.rounds or scale.rounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Acceptance of serving on GPUs.")
    parser.add_argument("--gpus", type=int, choices=sorted(SCALES), default=8)
    parser.add_argument("--model", choices=("lite", "mixtral"), default="lite", help="whose sizes the checkpoint has")
    parser.add_argument(
        "--attention", choices=("mla", "plain"), default="mla", help="of lite; plain also where mla does not come up"
    )
    parser.add_argument("--homes", default="domain,random")
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--concurrency", default="", help="requests in flight over all GPUs, like 256,512")
    parser.add_argument("--window-seconds", type=float, default=0.0, help="how long every layout is measured")
    parser.add_argument("--rounds", type=int, default=0, help="how often; an even number lets a steady drift cancel")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()) / "moeplan-gpu")
    parser.add_argument("--budget-seconds", type=float, default=480.0)
    parser.add_argument("--server-argument", action="append", default=[], help="one more word for every engine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
