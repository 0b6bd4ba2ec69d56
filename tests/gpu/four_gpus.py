"""Acceptance on four or eight GPUs: moeplan's layouts behind an all-to-all, and without one as the control.

    tests/gpu/run.sh KIT four_gpus --out OUT [--gpus 8] [--model MODEL] [--engines ...] [--budget-seconds S]
    python -m tests.gpu.four_gpus --cpu VENV --out OUT       a rehearsal on two CPU ranks

Every layout is planned from one half of the prompts and measured on the other. Requests live at random home GPUs
(``random homes``) or at the GPU of their domain (``domain homes``). ``--engines`` names numbers of slots (``80``,
behind the all-to-all), ``none`` (the first of them without one) and ``trained`` (``--model``, with its prompts.json).
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.grid import Grid
from tests.gpu.grid_cases import SCALES, GridScale, random_cases, random_model, trained_cases, trained_model
from tests.gpu.machine import PROJECT, Machine, cpu_machine, gpu_machine
from tests.gpu.results import Results, Stage, run_stages
from tests.gpu.server import EnginePool, EngineSetup
from tests.gpu.tables import grid_table

NONE, TRAINED = "none", "trained"


def all_stages(
    machine: Machine,
    results: Results,
    pool: EnginePool,
    *,
    engines: Sequence[str],
    trained: Path | None,
    extra: Sequence[str],
) -> list[tuple[str, Stage]]:
    """Return the stages of the engines asked for, in order."""
    scale = SCALES[machine.gpus]
    stages: list[tuple[str, Stage]] = []
    model = random_model(scale.checkpoint, machine.root)
    # Every GPU's part of a chunk is one full step.
    steps = ("--chunked-prefill-size", str(scale.step_tokens * machine.gpus))
    setups = [
        EngineSetup(
            f"slots-{model.experts + redundant}{'' if far else '-none'}",
            model.folder,
            redundant,
            dp_attention=True,
            all_to_all=far,
            arguments=(*steps, *extra),
        )
        for redundant, far, asked in _wanted(scale, model.experts)
        if asked in engines
    ]
    if setups:
        cases = random_cases(scale, gpus=machine.gpus)
        grid = Grid(machine, scale, results, pool, name="", model=model, cases=cases, setups=setups, timed=True)
        stages += [("models", lambda: _write_model(machine, scale.checkpoint, model.folder)), *grid.stages()]
    if TRAINED in engines and trained is not None:
        served = trained_model(trained)
        setup = EngineSetup(
            TRAINED, trained, scale.trained_redundant, dp_attention=True, all_to_all=True, arguments=tuple(extra)
        )
        cases = trained_cases(trained / "prompts.json", scale, gpus=machine.gpus)
        grid = Grid(machine, scale, results, pool, name=TRAINED, model=served, cases=cases, setups=[setup], timed=False)
        stages += grid.stages()
    return stages


def _wanted(scale: GridScale, experts: int) -> list[tuple[int, bool, str]]:
    """Return redundant slots, whether behind the all-to-all, and the name to ask for, of every engine."""
    far = [(redundant, True, str(experts + redundant)) for redundant in scale.redundant]
    return [*far, (scale.control_redundant, False, NONE)]


def _write_model(machine: Machine, name: str, folder: Path) -> None:
    command = [machine.engine_python, "-m", "tests.gpu.checkpoints", str(folder), name, machine.device]
    subprocess.check_call(command, cwd=PROJECT, env=machine.engine_variables(machine.root, all_to_all=False))


def main(arguments: list[str] | None = None) -> int:
    """Run the stages asked for; return 1 when one of them or a request failed."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # engines are stopped on the way out
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out, options.budget_seconds)
    if options.cpu:
        machine = cpu_machine(options.cpu, options.root)
        results.add("rehearsal", detail="on a CPU: figures are no measurements")
    else:
        machine = gpu_machine(options.root, gpus=options.gpus)
    scale = SCALES[machine.gpus]
    names = [asked for *_, asked in _wanted(scale, random_model(scale.checkpoint, machine.root).experts)]
    engines = options.engines.split(",") if options.engines else [*names, TRAINED]
    unknown = [name for name in engines if name not in (*names, TRAINED)]
    if unknown:
        print(f"there is no engine {unknown[0]}; engines are {', '.join((*names, TRAINED))}.", file=sys.stderr)
        return 2
    trained = options.model.resolve() if options.model else None
    if TRAINED in engines and (trained is None or not (trained / "prompts.json").exists()):
        results.add("left out", engine=TRAINED, case="", layouts=["all: no --model with a prompts.json was given"])
    with EnginePool(machine, options.out) as pool:
        usable = trained if trained is not None and (trained / "prompts.json").exists() else None
        stages = all_stages(machine, results, pool, engines=engines, trained=usable, extra=options.server_argument)
        wanted = [name for name, _ in stages]
        run_stages(stages, results, wanted=wanted, table=lambda found: grid_table(found, gpus=machine.gpus))
    print(grid_table(results.found, gpus=machine.gpus), flush=True)
    failed_requests = sum(finding["failed"] for finding in results.of("requests"))
    return 1 if results.failed_stages or failed_requests else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Acceptance on four or eight GPUs.")
    parser.add_argument("--gpus", type=int, choices=(4, 8), default=4)
    parser.add_argument("--cpu", type=Path, help="environment of tests/engine/kit/setup.sh, for a rehearsal")
    parser.add_argument("--model", type=Path, help="a trained model with its prompts.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()) / "moeplan-gpu")
    parser.add_argument("--engines", default="", help="numbers of slots, none, trained; all by default")
    parser.add_argument("--budget-seconds", type=float, default=500.0)
    parser.add_argument("--server-argument", action="append", default=[], help="one more word for every engine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
