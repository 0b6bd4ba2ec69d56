"""Serving of one model: a recording and a profile on a first engine, plans, slots chosen, then layouts under load."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx

from placement.dispatch import Dispatch
from placement.model_shape import ExpertShape
from profiler.engine.client import EngineClient
from profiler.hardware import read_hardware, write_hardware
from tests.gpu.calibration import calibrate
from tests.gpu.checkpoints import CHECKPOINTS, Checkpoint
from tests.gpu.compare import Prediction
from tests.gpu.layouts import baseline, demand_of
from tests.gpu.load import Load, loading
from tests.gpu.machine import PROJECT, Machine
from tests.gpu.results import Results, Stage
from tests.gpu.server import Engine, EngineNotUp, EnginePool, EngineSetup
from tests.gpu.serving_cases import ServingCase, ServingScale, profile_traffic, serving_cases
from tests.gpu.serving_measure import serve_under_layouts
from tests.gpu.serving_plans import CasePlans, Planner
from tests.gpu.slot_choice import slots_to_try
from tests.gpu.step_prediction import StepShape
from tests.gpu.traffic import Routed, routed_by_source

PRESET = "h200"


@dataclass(frozen=True)
class Wanted:
    """What is asked for: kinds of homes, mixes, and more server arguments for every engine."""

    homes: Sequence[str]
    mixes: Sequence[str]
    extra: Sequence[str] = ()


class Serving:
    """The stages, in order.

    Parameters
    ----------
    machine, scale, results, pool, wanted
    checkpoints : sequence of str
        The first whose engine serves is taken.
    """

    def __init__(
        self,
        machine: Machine,
        scale: ServingScale,
        results: Results,
        pool: EnginePool,
        *,
        checkpoints: Sequence[str],
        wanted: Wanted,
    ) -> None:
        self._machine, self._scale, self._results, self._pool = machine, scale, results, pool
        self._checkpoints, self._wanted = checkpoints, wanted
        self._name = checkpoints[0]
        self._cases: list[ServingCase] = []
        self._routed: dict[str, tuple[Routed, Routed]] = {}
        self._engines: list[tuple[EngineSetup, list[CasePlans]]] = []
        self._broken: set[str] = set()

    def stages(self) -> Iterator[tuple[str, Stage]]:
        """Give all stages by name; which engines there are to measure on is known when ``slots`` has run."""
        yield "start", self._start
        yield "tokens", self._ask_tokens
        yield "profile", self._fit_profile
        yield "slots", self._choose
        for number, (setup, _) in enumerate(self._engines):
            yield f"serve-{setup.name}", partial(self._measure, number)

    @property
    def _model(self) -> Checkpoint:
        return CHECKPOINTS[self._name]

    def _setup(self, slots: int) -> EngineSetup:
        in_flight = 2 * max(self._scale.concurrency)
        steps = ("--chunked-prefill-size", str(self._scale.step_tokens * self._machine.gpus))
        return EngineSetup(
            f"{self._name}-{slots}",
            self._machine.root / self._name,
            slots - self._model.experts,
            dp_attention=True,
            all_to_all=True,
            arguments=(*steps, "--max-running-requests", str(max(1024, in_flight)), *self._wanted.extra),
        )

    @contextmanager
    def _engine(self, setup: EngineSetup) -> Iterator[tuple[Engine, EngineClient]]:
        engine = self._pool.get(setup)
        try:
            with EngineClient(engine.url) as client:
                yield engine, client
        finally:
            self._results.add_requests(engine)

    @property
    def _first(self) -> EngineSetup:
        return self._setup(slots_to_try(experts=self._model.experts, gpus=self._machine.gpus)[0])

    def _start(self) -> None:
        """Write a checkpoint and start an engine on it; where none comes up take the next."""
        for name in self._checkpoints:
            self._name = name
            try:
                self._write_checkpoint()
                with self._engine(self._first) as (engine, _client):
                    model = self._model
                    sizes = {key: getattr(model, key) for key in ("layers", "dense_layers", "experts", "top_k")}
                    self._results.add("model", name=name, attention=model.attention, hidden=model.hidden, **sizes)
                    self._results.say(f"{name} serves after {engine.start_s:.0f} s")
                break
            except (EngineNotUp, subprocess.SubprocessError, httpx.HTTPError) as error:
                self._results.add("not up", engine=self._first.name, model=name, reason=str(error)[-3000:])
                self._pool.stop(self._first.name)
        else:
            raise RuntimeError("no engine came up")
        self._cases = serving_cases(
            self._name, gpus=self._machine.gpus, homes=self._wanted.homes, mixes=self._wanted.mixes
        )

    def _write_checkpoint(self) -> None:
        folder = self._machine.root / self._name
        command = [self._machine.engine_python, "-m", "tests.gpu.checkpoints", str(folder), self._name]
        variables = self._machine.engine_variables(self._machine.root, all_to_all=False)
        subprocess.run([*command, self._machine.device], cwd=PROJECT, env=variables, check=True)

    def _ask_tokens(self) -> None:
        model = self._model
        sizes = {"layers": model.layers, "top_k": model.top_k, "dense_layers": model.dense_layers}
        with self._engine(self._first) as (engine, _client):
            for case in self._cases:
                halves = (case.halves.planned_from, case.halves.judged_on)
                first, second = (routed_by_source(engine, half, **sizes) for half in halves)
                self._routed[case.name] = (first, second)
                counts = {"planned_from": len(first.source_T), "judged_on": len(second.source_T)}
                self._results.add("tokens", case=case.name, **counts)

    def _fit_profile(self) -> None:
        """Fit times to layouts and traffic of their own; the all-to-all is the same one in both phases."""
        with self._engine(self._first) as (engine, client):
            profile = calibrate(
                engine,
                client,
                self._results,
                model=self._model,
                traffics=profile_traffic(self._name, gpus=self._machine.gpus),
                shape=StepShape(
                    expert=ExpertShape.from_config(self._model.config()),
                    top_k=self._model.top_k,
                    experts=self._model.experts,
                    gpus=self._machine.gpus,
                    tokens_per_gpu=self._scale.step_tokens,
                    dispatch=Dispatch.NEAREST_DYNAMIC,
                ),
                base=read_hardware(PRESET),
                least_steps=self._scale.least_steps,
                file=self._profile_file,
            )
        if self._profile_file.exists():
            sources = {name: text for name, text in profile.sources.items() if not name.startswith("decode")}
            both = replace(profile, decode=profile.prefill, sources={**sources, "decode": "as in prefill"})
            write_hardware(both, self._profile_file)

    @property
    def _profile_file(self) -> Path:
        return self._machine.root / f"{self._name}-fitted.toml"

    def _choose(self) -> None:
        """Plan, and choose the numbers of slots of the engines to measure on."""
        planner = Planner(
            self._machine,
            self._scale,
            self._results,
            checkpoint=self._name,
            hardware=self._profile_file if self._profile_file.exists() else PRESET,
        )
        planned = planner.plan(self._cases, {name: first for name, (first, _second) in self._routed.items()})
        wanted = {layout.slots for plans in planned for layout in plans.layouts.values()}
        self._engines = [
            (self._setup(slots), [plans for plans in planned if plans.at(slots)]) for slots in sorted(wanted)
        ]
        if not self._engines:
            raise RuntimeError("no plan was made, so that no engine is known to measure on.")
        if self._first.name not in [setup.name for setup, _ in self._engines]:
            self._pool.stop(self._first.name)

    def _measure(self, number: int) -> None:
        setup, cases = self._engines[number]
        # An engine that runs already is measured before others load beside it.
        if setup.name not in self._broken and not self._pool.holds(setup.name):
            self._start_all(self._engines[number:])
        if setup.name in self._broken:
            raise RuntimeError(f"engine {setup.name} did not come up")
        try:
            with self._engine(setup) as (engine, client):
                for plans in cases:
                    self._warm_up(engine, plans.case)
                    for streams in self._scale.concurrency:
                        self._serve(engine, client, plans, streams)
        finally:
            self._pool.stop(setup.name)

    def _start_all(self, engines: Sequence[tuple[EngineSetup, list[CasePlans]]]) -> None:
        """Start engines side by side and wait for all: nothing is measured while some still load."""
        for setup, _ in engines:
            self._pool.launch(setup)
        for setup, _ in engines:
            try:
                self._pool.get(setup)
            except EngineNotUp as error:
                self._results.add("not up", engine=setup.name, model=self._name, reason=str(error)[-3000:])
                self._pool.stop(setup.name)
                self._broken.add(setup.name)

    def _warm_up(self, engine: Engine, case: ServingCase) -> None:
        """Let kernels be compiled for the sizes of batches that are to come."""
        if self._results.elapsed_s <= self._results.budget_s:
            load = Load(case.halves.planned_from, max(self._scale.concurrency), self._scale.tokens_per_event)
            with loading(self._machine, engine, load):
                time.sleep(self._scale.ramp_s)

    def _serve(self, engine: Engine, client: EngineClient, plans: CasePlans, streams: int) -> None:
        case = plans.case
        where = {"engine": engine.setup.name, "case": case.name, "concurrency": streams}
        if self._results.elapsed_s > self._results.budget_s:
            self._results.add("left out", **where)
            return
        gpus, experts = self._machine.gpus, self._model.experts
        planned_from, judged_on = self._routed[case.name]
        slots = experts + engine.setup.redundant
        demand = demand_of(planned_from, experts=experts, gpus=gpus)
        layouts = {
            name: baseline(which, demand, gpus=gpus, slots=slots, dispatch=Dispatch.NEAREST_DYNAMIC)
            for name, which in (("initial", "trivial"), ("eplb", "eplb"))
        } | plans.at(slots)
        serve_under_layouts(
            self._machine,
            engine,
            client,
            self._results,
            what=where,
            layouts=layouts,
            prediction=Prediction(
                demand_of(judged_on, experts=experts, gpus=gpus), judged_on, Dispatch.NEAREST_DYNAMIC
            ),
            load=Load(case.halves.judged_on, streams, self._scale.tokens_per_event),
            scale=self._scale,
            dense_layers=self._model.dense_layers,
        )
