"""Acceptance on two GPUs: the loop under load, pushes, the cost of recording, layouts with and without an all-to-all,
a hardware profile, and sizes of the cache.

    tests/gpu/run.sh KIT two_gpus --out OUT [--model MODEL] [--stages ...] [--budget-seconds S]
    python -m tests.gpu.two_gpus --cpu VENV --out OUT       a rehearsal, whose figures are no measurements

``OUT/results.jsonl`` gets every finding as soon as it is made, ``OUT/table.md`` the summary. Exit code 1: a stage
failed, or a request did.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from placement.dispatch import Dispatch
from placement.problem import Objective
from profiler.engine.client import EngineClient
from tests.gpu.cache_sizes import measure_size, sized_setup
from tests.gpu.checkpoints import CHECKPOINTS, write_configuration
from tests.gpu.compare import Measurement, Prediction, compare_layouts
from tests.gpu.hardware_check import check_calibration
from tests.gpu.layouts import baseline, domain_layout, planned, worst
from tests.gpu.link import measure_link
from tests.gpu.loop import run_loop
from tests.gpu.machine import PROJECT, Machine, cpu_machine, gpu_machine
from tests.gpu.measure import difference, record_demand
from tests.gpu.pushes import measure_pushes
from tests.gpu.recording_cost import measure_decode_recording, measure_prefill_recording
from tests.gpu.results import Results, Stage, run_stages
from tests.gpu.scale import CPU_SCALE, GPU_SCALE, Scale
from tests.gpu.server import Engine, EnginePool, EngineSetup
from tests.gpu.tables import two_gpu_table
from tests.gpu.traffic import Routed, Traffic, domain_traffic, random_traffic, routed_tokens, send

GPUS = 2
STAGES = (
    "models",
    "link",
    "calibrate",
    "demand",
    "loop",
    "loop-dp",
    "push",
    "recording",
    "recording-deep",
    "layouts",
    "all-to-all",
    "size",
)
HOT_STAGES = ("push", "recording", "layouts")


class TwoGpus:
    """The stages, in order.

    Parameters
    ----------
    machine, scale, results, pool
    model : Path or None
        A trained model for the loop; without it the one with hot experts is used.
    extra : sequence of str
        More server arguments for every engine.
    """

    def __init__(
        self,
        machine: Machine,
        scale: Scale,
        results: Results,
        pool: EnginePool,
        *,
        model: Path | None,
        extra: Sequence[str],
    ) -> None:
        self._machine, self._scale, self._results, self._pool = machine, scale, results, pool
        hot, domains = (machine.root / name for name in (scale.hot, scale.domains))
        more = {"redundant": scale.redundant, "arguments": tuple(extra)}
        # Long steps of equal size: every GPU's part of a step is 8,192 tokens.
        long_steps = () if machine.device == "cpu" else ("--chunked-prefill-size", str(8192 * machine.gpus))
        self._loop = EngineSetup("loop", model or hot, **more)
        self._loop_dp = EngineSetup("loop-dp", model or hot, dp_attention=True, **more)
        self._hot = EngineSetup("hot", hot, **more)
        made_up = ("--load-format", "dummy", *extra)
        self._deep = EngineSetup("deep", machine.root / scale.deep, redundant=scale.redundant, arguments=made_up)
        sized = [(f"size-{redundant}", hot, redundant) for redundant in scale.sized_redundants]
        sized += [] if model is None else [("size-model", model, scale.redundant)]
        self._sized = [
            sized_setup(name, path, redundant=redundant, fraction=scale.sized_fraction, extra=tuple(extra))
            for name, path, redundant in sized
        ]
        self._far = EngineSetup(
            "all-to-all",
            domains,
            redundant=scale.redundant,
            dp_attention=True,
            all_to_all=True,
            arguments=(*long_steps, *extra),
        )

    def stages(self, wanted: Sequence[str]) -> list[tuple[str, Stage]]:
        """Return all stages by name. Engines of the wanted ones that can start side by side are launched together."""
        together = [
            setup
            for setup, names in (
                (self._loop, ["demand", "loop"]),
                (self._loop_dp, ["demand", "loop-dp"]),
                (self._hot, HOT_STAGES),
            )
            if set(names) & set(wanted) and self._machine.device == "cuda"  # a CPU has no room for several
        ]
        stages: dict[str, Stage] = {
            "models": lambda: self._models(wanted),
            "link": lambda: measure_link(self._machine, self._results),
            "calibrate": lambda: check_calibration(self._machine, self._results),
            "demand": lambda: self._demand(together),
            "loop": lambda: self._on(self._loop, self._run_loop, launch=self._not_yet(together), stop=True),
            "loop-dp": lambda: self._on(self._loop_dp, self._run_loop, stop=True),
            "push": lambda: self._on(self._hot, self._pushes),
            "recording": lambda: self._on(self._hot, self._recording),
            "recording-deep": self._recording_deep,
            "layouts": lambda: self._on(self._hot, self._layouts, stop=True),
            "all-to-all": lambda: self._on(self._far, self._all_to_all, stop=True),
            "size": self._sizes,
        }
        return list(stages.items())

    def _models(self, wanted: Sequence[str]) -> None:
        """Write the random checkpoints that the wanted stages need."""
        names = [self._scale.hot, *([self._scale.domains] if "all-to-all" in wanted else [])]
        writers = []
        for name in names:
            command = [self._machine.engine_python, "-m", "tests.gpu.checkpoints", str(self._machine.root / name), name]
            variables = self._machine.engine_variables(self._machine.root, all_to_all=False)
            writers.append(subprocess.Popen([*command, self._machine.device], cwd=PROJECT, env=variables))
        ended = {name: writer.wait() for name, writer in zip(names, writers, strict=True)}
        if any(ended.values()):
            raise RuntimeError(f"checkpoints were not written: exit codes {ended}")

    def _on(
        self,
        setup: EngineSetup,
        work: Callable[[Engine], None],
        *,
        launch: Sequence[EngineSetup] = (),
        stop: bool = False,
    ) -> None:
        """Do something on an engine, count its requests, and stop it where nothing else needs it."""
        for other in launch:
            self._pool.launch(other)
        engine = None
        try:
            engine = self._pool.get(setup)
            work(engine)
        finally:
            if engine is not None:
                self._results.add_requests(engine)
            if stop:
                self._pool.stop(setup.name)

    def _not_yet(self, setups: Sequence[EngineSetup]) -> list[EngineSetup]:
        return [setup for setup in setups if not self._pool.holds(setup.name)]

    def _demand(self, together: Sequence[EngineSetup]) -> None:
        """Hold recorded demand against what the same requests say of themselves, decode steps in CUDA graphs."""
        self._on(self._loop, self._recorded_demand, launch=together)
        self._on(self._loop_dp, self._recorded_demand)

    def _recorded_demand(self, engine: Engine) -> None:
        config = json.loads((engine.setup.model / "config.json").read_text())
        shape = {"layers": config["num_hidden_layers"], "top_k": config["num_experts_per_tok"]}
        streams, new_tokens = self._scale.loop_streams, self._scale.loop_tokens
        asked = random_traffic(
            sources=engine.sources, requests=streams, prompt_tokens=24, new_tokens=new_tokens, tokens=range(250), seed=9
        )
        routed: list[Routed] = []
        with EngineClient(engine.url) as client:
            demand = record_demand(client, lambda: routed.append(routed_tokens(engine, asked, **shape)))
        self._results.add("recorded demand", engine=engine.setup.name, **difference(demand, routed[0]))

    def _run_loop(self, engine: Engine) -> None:
        run_loop(self._machine, engine, self._results, self._scale)

    def _pushes(self, engine: Engine) -> None:
        measure_pushes(self._machine, engine, self._results, self._scale)

    def _recording(self, engine: Engine) -> None:
        self._decode_recording(engine)
        prefill = self._traffic(self._scale.prefill)
        measure_prefill_recording(engine, self._results, traffic=prefill, pairs=self._scale.prefill_pairs)

    def _recording_deep(self) -> None:
        """The cost on a model whose steps are as long as a served one's; with routing that means nothing."""
        write_configuration(self._deep.model, CHECKPOINTS[self._scale.deep])
        self._on(self._deep, self._decode_recording, stop=True)

    def _decode_recording(self, engine: Engine) -> None:
        measure_decode_recording(self._machine, engine, self._results, self._scale)

    def _layouts(self, engine: Engine) -> None:
        prefill, decode = self._traffic(self._scale.prefill), self._traffic(self._scale.decode)
        with EngineClient(engine.url) as client:
            start = client.placement()
            demand = record_demand(client, lambda: send(engine, prefill), phase="prefill")
            even = {"gpus": GPUS, "slots": start.slots, "dispatch": Dispatch.EVEN}
            layouts = {
                "trivial": baseline("trivial", demand, **even),
                "worst": worst(demand, gpus=GPUS, slots=start.slots),
                "eplb": baseline("eplb", demand, **even),
                "moeplan balance": planned(demand, Objective.BALANCE, **even),
            }
            compare_layouts(
                engine,
                client,
                self._results,
                layouts=layouts,
                prediction=Prediction(demand, None, Dispatch.EVEN),
                measurement=Measurement(prefill, decode, self._scale.layout_rounds, self._scale.step_repeats),
            )

    def _all_to_all(self, engine: Engine) -> None:
        model = CHECKPOINTS[self._scale.domains]
        requests, prompt_tokens, new_tokens = self._scale.step
        mixed = {"sources": GPUS, "new_tokens": new_tokens, "at_home": 0.9}
        prefill = domain_traffic(model, requests=requests, prompt_tokens=prompt_tokens, seed=5, **mixed)
        with EngineClient(engine.url) as client:
            start = client.placement()
            send(engine, prefill)
            demand = record_demand(client, lambda: send(engine, prefill), phase="prefill")
            routed = routed_tokens(engine, prefill, layers=model.layers, top_k=model.top_k)
            self._results.add("recorded demand", engine=engine.setup.name, **difference(demand, routed))
            near = {"gpus": GPUS, "slots": start.slots, "dispatch": Dispatch.NEAREST_DYNAMIC}
            sizes = {"layers": model.layers, "experts": model.experts, "gpus": GPUS, "slots": start.slots}
            own = model.experts // GPUS
            layouts = {f"{kept} of {own} at home": domain_layout(kept, **sizes) for kept in _steps(own)}
            layouts |= {
                "trivial": baseline("trivial", demand, **near),
                "eplb": baseline("eplb", demand, **near),
                "moeplan locality": planned(demand, Objective.LOCALITY, **near),
            }
            compare_layouts(
                engine,
                client,
                self._results,
                layouts=layouts,
                prediction=Prediction(demand, routed, Dispatch.NEAREST_DYNAMIC),
                measurement=Measurement(prefill, None, self._scale.layout_rounds, self._scale.step_repeats),
            )

    def _sizes(self) -> None:
        self._pool.stop(self._hot.name)  # still there where the stage that stops it was not wanted
        for setup in self._sized:
            self._on(setup, self._size, stop=True)

    def _size(self, engine: Engine) -> None:
        measure_size(self._machine, engine, self._results, fraction=self._scale.sized_fraction)

    def _traffic(self, size: tuple[int, int, int]) -> Traffic:
        requests, prompt_tokens, new_tokens = size
        vocabulary = CHECKPOINTS[self._scale.hot].domain_tokens(0)
        tokens = range(min(256, len(vocabulary)))
        return random_traffic(
            sources=1,
            requests=requests,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            tokens=tokens,
            seed=3,
        )


def _steps(own: int) -> list[int]:
    """Return how many experts of a domain are kept at home, from none to all."""
    return [0, own // 2, own * 3 // 4, own * 15 // 16, own]


def main(arguments: list[str] | None = None) -> int:
    """Run the stages asked for; return 1 when one of them or a request failed."""
    options = _parser().parse_args(arguments)
    wanted = options.stages.split(",")
    unknown = [name for name in wanted if name not in STAGES]
    if unknown:
        print(f"there is no stage {unknown[0]}; stages are {', '.join(STAGES)}.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # engines are stopped on the way out
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out, options.budget_seconds)
    if options.cpu:
        machine, scale = cpu_machine(options.cpu, options.root), CPU_SCALE
        results.add("rehearsal", detail="on a CPU: figures are no measurements")
    else:
        machine, scale = gpu_machine(options.root, gpus=GPUS), GPU_SCALE
    with EnginePool(machine, options.out) as pool:
        model = options.model.resolve() if options.model else None
        run = TwoGpus(machine, scale, results, pool, model=model, extra=options.server_argument)
        run_stages(run.stages(wanted), results, wanted=wanted, table=two_gpu_table)
    print(two_gpu_table(results.found), flush=True)
    failed_requests = sum(finding["failed"] for finding in results.of("requests"))
    return 1 if results.failed_stages or failed_requests else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Acceptance on two GPUs.")
    parser.add_argument("--cpu", type=Path, help="environment of tests/engine/kit/setup.sh, for a rehearsal")
    parser.add_argument("--model", type=Path, help="a trained model for the loop")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, default=Path(tempfile.gettempdir()) / "moeplan-gpu")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--budget-seconds", type=float, default=460.0)
    parser.add_argument("--server-argument", action="append", default=[], help="one more word for every engine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
