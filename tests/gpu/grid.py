"""One model under many layouts: tokens recorded, plans made from one half, layouts measured on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from placement.dispatch import Dispatch
from placement.hardware import HardwareProfile
from placement.layout import Layout
from placement.problem import Objective
from profiler.engine.client import EngineClient
from profiler.hardware import read_hardware
from tests.gpu.calibration import calibrate
from tests.gpu.checkpoints import CHECKPOINTS
from tests.gpu.compare import Measurement, Prediction, compare_layouts
from tests.gpu.grid_cases import RANDOM_HOMES, Case, GridScale, ServedModel, calibration_traffic
from tests.gpu.layouts import baseline, demand_of, planned
from tests.gpu.machine import Machine
from tests.gpu.plans import WantedPlan, make_plans, write_trace
from tests.gpu.results import Results, Stage
from tests.gpu.server import Engine, EngineNotUp, EnginePool, EngineSetup
from tests.gpu.step_prediction import StepShape, predict_steps
from tests.gpu.traffic import Routed, routed_tokens

BASELINES = ("random", "eplb", "hot_replication")
PRESET = "h200"
CALIBRATED = "calibrated-all-to-all.toml"


@dataclass(frozen=True)
class Goal:
    """An objective of ``moeplan plan``, for all of the recording together or for every step of it."""

    objective: str
    window_by: str = "file"

    @property
    def name(self) -> str:
        return self.objective if self.window_by == "file" else f"{self.objective} by step"


GOALS = (Goal("locality"), Goal("traffic"), Goal("step-time"))
GOALS_BY_STEP = (Goal("traffic", "steps:1"), Goal("step-time", "steps:1"))
"""For random homes: every step has another mixture of domains, which a plan for their sum knows nothing of."""


class Grid:
    """The stages of one model on some engines, in order.

    Routing does not depend on the layout, so tokens are asked for once, on the first engine, for all others.

    Parameters
    ----------
    machine, scale, results, pool
    name : str
        Prefix of the stages' names; empty for none.
    model : ServedModel
    cases : sequence of Case
    setups : sequence of EngineSetup
        All are launched side by side where there are GPUs.
    timed : bool
        Steps are full and of equal size, so that their times can be predicted; else only counts are.
    """

    def __init__(
        self,
        machine: Machine,
        scale: GridScale,
        results: Results,
        pool: EnginePool,
        *,
        name: str,
        model: ServedModel,
        cases: Sequence[Case],
        setups: Sequence[EngineSetup],
        timed: bool,
    ) -> None:
        self._machine, self._scale, self._results, self._pool = machine, scale, results, pool
        self._name, self._model, self._cases, self._setups, self._timed = name, model, cases, setups, timed
        self._routed: dict[str, tuple[Routed, Routed]] = {}
        self._profiles: dict[bool, HardwareProfile] = {}
        self._plans: dict[tuple[str, int], dict[str, Layout]] = {}

    def stages(self) -> list[tuple[str, Stage]]:
        """Return all stages by name."""
        prefix = f"{self._name}-" if self._name else ""
        found: list[tuple[str, Stage]] = [(f"{prefix}tokens", self._ask_tokens)]
        if self._timed:
            for far, kind in ((True, "all-to-all"), (False, "none")):
                of_kind = [setup for setup in self._setups if setup.all_to_all is far]
                if of_kind:
                    found.append(
                        (f"calibrate-{kind}", lambda of_kind=of_kind: self._on_first(of_kind, self._calibrate))
                    )  # type: ignore[misc]
        found.append((f"{prefix}plans", self._make_plans))
        for setup in self._setups:
            for case in self._cases:
                last = case is self._cases[-1]
                found.append(
                    (
                        f"{setup.name}-{case.name}",
                        lambda setup=setup, case=case, last=last: self._measure(setup, case, stop=last),  # type: ignore[misc]
                    )
                )
        return found

    def launch(self) -> None:
        """Start every engine, where they can start side by side, without waiting for them."""
        if self._machine.device == "cuda":
            for setup in self._setups:
                self._pool.launch(setup)

    @contextmanager
    def _engine(self, setup: EngineSetup) -> Iterator[tuple[Engine, EngineClient]]:
        engine = self._pool.get(setup)
        try:
            with EngineClient(engine.url) as client:
                yield engine, client
        finally:
            self._results.add_requests(engine)

    def _ask_tokens(self) -> None:
        """Ask for the experts of all tokens of both halves of every case, on the first engine that serves."""
        self.launch()
        self._on_first(self._setups, self._ask_tokens_of)

    def _on_first(self, setups: Sequence[EngineSetup], work: Callable[[EngineSetup], None]) -> None:
        """Do something on the first engine that serves."""
        for setup in setups:
            try:
                work(setup)
                return
            except EngineNotUp as error:
                self._results.add("not up", engine=setup.name, reason=str(error)[-1500:])
        raise RuntimeError("no engine came up")

    def _ask_tokens_of(self, setup: EngineSetup) -> None:
        with self._engine(setup) as (engine, _client):
            sizes = {"layers": self._model.layers, "top_k": self._model.top_k}
            for case in self._cases:
                first, second = (routed_tokens(engine, half, **sizes) for half in (case.planned_from, case.judged_on))
                self._routed[case.homes] = (first, second)
                self._results.add(
                    "tokens",
                    engine=engine.setup.name,
                    case=case.homes,
                    planned_from=len(first.source_T),
                    judged_on=len(second.source_T),
                )

    def _calibrate(self, setup: EngineSetup) -> None:
        with self._engine(setup) as (engine, client):
            file = self._machine.root / (CALIBRATED if setup.all_to_all else "calibrated-none.toml")
            self._profiles[setup.all_to_all] = calibrate(
                engine,
                client,
                self._results,
                model=CHECKPOINTS[self._scale.checkpoint],
                traffics=calibration_traffic(self._scale, gpus=self._machine.gpus),
                shape=self._shape(setup),
                base=read_hardware(PRESET),
                least_steps=self._scale.least_steps,
                file=file,
            )

    def _make_plans(self) -> None:
        """Plan for every number of slots and every case with moeplan's command."""
        profile = self._machine.root / CALIBRATED
        hardware: Path | str = profile if profile.exists() and self._timed else PRESET
        wanted, keys = [], []
        for slots in dict.fromkeys(self._slots(setup) for setup in self._setups):
            for case in self._cases:
                name = f"{self._name}{case.name}"
                trace = self._machine.root / f"{name}.npz"
                step_tokens = self._scale.step_tokens if self._timed else None
                routed = self._routed[case.homes][0]
                write_trace(trace, routed, experts=self._model.experts, tokens_per_step=step_tokens)
                by_step = self._timed and case.homes == RANDOM_HOMES
                for goal in (*GOALS, *(GOALS_BY_STEP if by_step else ())):
                    plan_wanted = WantedPlan(
                        f"{name}-{goal.name}", goal.objective, trace, slots // self._machine.gpus, goal.window_by
                    )
                    wanted.append(plan_wanted)
                    keys.append((case.homes, slots, goal.name))
        config = self._model.folder / "config.json"
        made = make_plans(self._machine, wanted, model=config, hardware=hardware, time_limit_s=self._scale.plan_s)
        for (homes, slots, goal_name), plan in zip(keys, made, strict=True):
            summary = {key: plan.summary.get(key) for key in ("status", "solve_seconds", "bound", "warnings")}
            metrics = plan.summary.get("metrics", {})
            self._results.add(
                "plan",
                model=self._name or "random",
                goal=goal_name,
                case=homes,
                slots=slots,
                error=plan.error,
                hardware=str(hardware),
                **summary,
                metrics={key: value for key, value in metrics.items() if isinstance(value, (int, float))},
                moe_layer=metrics.get("moe_layer"),
            )
            if plan.layout is not None:
                self._plans.setdefault((homes, slots), {})[f"moeplan {goal_name}"] = plan.layout

    def _measure(self, setup: EngineSetup, case: Case, *, stop: bool) -> None:
        try:
            with self._engine(setup) as (engine, client):
                self._compare(engine, client, case)
        finally:
            if stop:
                self._pool.stop(setup.name)

    def _compare(self, engine: Engine, client: EngineClient, case: Case) -> None:
        planned_from, judged_on = self._routed[case.homes]
        start = client.placement()
        gpus, slots, experts = start.ep_size, start.slots, start.experts
        setup = engine.setup
        near = {"gpus": gpus, "slots": slots, "dispatch": Dispatch.NEAREST_DYNAMIC}
        demand = demand_of(planned_from, experts=experts, gpus=gpus)
        layouts = {"initial": baseline("trivial", demand, **near)}
        layouts |= {name: baseline(name, demand, **near) for name in BASELINES}
        layouts |= self._plans.get((case.homes, slots), {})
        if not setup.all_to_all:
            layouts["moeplan balance"] = planned(
                demand, Objective.BALANCE, gpus=gpus, slots=slots, dispatch=Dispatch.EVEN
            )
        dispatch = Dispatch.NEAREST_DYNAMIC if setup.all_to_all else Dispatch.EVEN
        profile = self._profiles.get(setup.all_to_all)
        steps = {} if profile is None else predict_steps(layouts, judged_on, self._shape(setup), profile)
        compare_layouts(
            engine,
            client,
            self._results,
            layouts=layouts,
            prediction=Prediction(
                demand_of(judged_on, experts=experts, gpus=gpus),
                judged_on if setup.all_to_all else None,
                dispatch,
                steps,
            ),
            measurement=Measurement(
                case.judged_on,
                None,
                self._scale.rounds,
                self._scale.repeats,
                least_steps=self._scale.least_steps if self._timed else 0,
                until_s=self._results.budget_s,
            ),
            case=case.homes,
        )

    def _shape(self, setup: EngineSetup) -> StepShape:
        return StepShape(
            expert=self._model.expert,
            top_k=self._model.top_k,
            experts=self._model.experts,
            gpus=self._machine.gpus,
            tokens_per_gpu=self._scale.step_tokens,
            dispatch=Dispatch.NEAREST_DYNAMIC if setup.all_to_all else Dispatch.EVEN,
        )

    def _slots(self, setup: EngineSetup) -> int:
        return self._model.experts + setup.redundant
