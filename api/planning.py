"""Plan from files: what the command line does today and a job of the service will do tomorrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from api.loading import LoadedDemand, load_demand, read_topology
from api.slots_option import check_draft, live_gpu_count, require_live_slots, slots_from_options
from api.workers import Crew, FanOut, Workers, open_workers
from placement.comparison import Traces
from placement.demand import Demand
from placement.dispatch import Dispatch
from placement.errors import BadOption
from placement.hardware import Phase
from placement.layout import Layout
from placement.notice import Notice
from placement.plan import Plan
from placement.plan_header import PlanInput, PlannedModel, PlanOptions, SlotsFrom
from placement.planner import Effort, Setting, make_plan, solve_problem, solve_with_pareto
from placement.problem import LocalScope, Objective, Problem
from placement.slots import smallest_slots_per_gpu
from placement.solver import MapTasks
from placement.step_time import USUAL_TOKENS, Step
from placement.token_sample import take_sample
from placement.tokens import WindowTokens
from placement.topology import MAX_GPUS, Topology
from profiler.formats import read_layout
from profiler.hardware import read_hardware
from profiler.model_file import model_names
from profiler.readers.options import ReadOptions

DEFAULT_LOCAL_TARGET = 0.6

DEFAULT_HEDGE = 0.005
"""Part of the local share that is given up for balance on other traffic, where several windows show how it varies."""

MAX_SEED = 2**31 - 1
"""CP-SAT takes 32 bits with a sign."""

MAX_THREADS = 1024
MAX_EXPERT_BYTES = 2**50
MAX_MOVED_BYTES = 2**62


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What is asked of a plan; see the options of ``moeplan plan`` for each field."""

    gpus: int
    nodes: int = 1
    topology_file: Path | None = None
    slots_per_gpu: int | None = None
    redundant: int | None = None
    fit: bool = False
    local_target: float | None = None
    local_scope: LocalScope = LocalScope.GPU
    objective: Objective = Objective.LOCALITY
    max_imbalance: float = 1.05
    hedge: float | None = None
    dispatch: Dispatch = Dispatch.NEAREST_DYNAMIC
    window_by: str = "file"
    sources: str = "auto"
    phase: Literal["prefill", "decode"] | None = None
    holdout: float | None = None
    test: tuple[Path, ...] = ()
    current: Path | None = None
    capacity_factor: float = 1.25
    sample_tokens: int | None = None
    expert_groups: int | None = None
    expert_bytes: int | None = None
    draft_experts: int | None = None
    draft_redundant: int | None = None
    live_gpus: str | None = None
    time_limit_s: float | None = None
    seed: int = 0
    threads: int = 1
    workers: Workers = 1
    max_moved_slots: int | None = None
    max_moved_bytes: int | None = None
    pareto: bool = False
    max_overflow: float | None = None
    hardware: str | None = None
    step_phase: Phase | None = None
    step_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.local_target is not None and not 0 < self.local_target <= 1:
            raise BadOption(f"the local target is {self.local_target}; it is a share above 0 and up to 1, like 0.6.")
        if not 0 < self.capacity_factor <= MAX_GPUS:
            raise BadOption(
                f"the capacity factor is {self.capacity_factor}; it is above 0 and up to {MAX_GPUS}, like 1.25."
            )
        if not 1 <= self.max_imbalance <= MAX_GPUS:
            raise BadOption(
                f"--max-imbalance is {self.max_imbalance}; the smallest possible imbalance is 1, and the number of "
                "GPUs (everything on one) limits nothing."
            )
        if self.max_overflow is not None and not 0 <= self.max_overflow <= 1:
            raise BadOption(
                f"--max-overflow is {self.max_overflow}; it is a share of the demand from 0 (no GPU above its "
                "capacity) to 1."
            )
        if self.time_limit_s is not None and not 0 < self.time_limit_s < math.inf:
            raise BadOption(
                f"the time limit is {self.time_limit_s} s; it is a number of seconds above 0; leave it out for none."
            )
        if self.sample_tokens is not None and self.sample_tokens < 1:
            raise BadOption(f"--sample-tokens is {self.sample_tokens}; it is a number from 1 upwards.")
        if not 1 <= self.threads <= MAX_THREADS:
            raise BadOption(f"{self.threads} threads were asked for; 1 to {MAX_THREADS} can be used.")
        if not 0 <= self.seed <= MAX_SEED:
            raise BadOption(f"the seed is {self.seed}; it is a whole number from 0 to {MAX_SEED}.")
        if self.expert_groups is not None and self.expert_groups < 1:
            raise BadOption(f"--expert-groups is {self.expert_groups}; a model has at least 1 group.")
        if self.expert_bytes is not None and not 1 <= self.expert_bytes <= MAX_EXPERT_BYTES:
            raise BadOption(f"--expert-bytes is {self.expert_bytes}; it is a number from 1 to {MAX_EXPERT_BYTES}.")
        self._check_moves()
        self._check_step_time()
        if self.test and self.holdout is not None:
            raise BadOption("--holdout and --test exclude each other; give one.")

    def _check_step_time(self) -> None:
        if self.objective is Objective.STEP_TIME and self.hardware is None:
            raise BadOption(
                "--objective step-time needs --hardware (a profile like h200) and --model, to predict times with."
            )
        if self.objective is Objective.STEP_TIME and (self.pareto or self.most_moved_slots is not None):
            raise BadOption("--objective step-time takes no limit on moves and no --pareto; leave them out.")

    def _check_moves(self) -> None:
        for option, most in (("--max-moved-slots", self.max_moved_slots), ("--max-moved-bytes", self.max_moved_bytes)):
            if most is not None and not 0 <= most <= MAX_MOVED_BYTES:
                raise BadOption(f"{option} is {most}; it is a number from 0 (nothing moves) to {MAX_MOVED_BYTES}.")
        if self.max_moved_slots is not None and self.max_moved_bytes is not None:
            raise BadOption("--max-moved-slots and --max-moved-bytes exclude each other; give one.")
        if self.max_moved_bytes is not None and self.expert_bytes is None:
            raise BadOption(
                "--max-moved-bytes needs --expert-bytes, the bytes of one expert's weights in one layer; or give "
                "--max-moved-slots."
            )
        limited = self.most_moved_slots is not None
        if self.fit and (limited or self.pareto):
            given = "a limit on moves" if limited else "--pareto"
            raise BadOption(
                f"--fit and {given} exclude each other: an engine that gets another number of slots starts anew; give "
                "--slots-per-gpu or --redundant."
            )

    @property
    def most_moved_slots(self) -> int | None:
        """Slots that may move, None for any number."""
        if self.max_moved_bytes is not None and self.expert_bytes is not None:
            return self.max_moved_bytes // self.expert_bytes
        return self.max_moved_slots

    @property
    def slots_from(self) -> SlotsFrom:
        if self.fit:
            return "fit"
        if self.redundant is not None:
            return "redundant"
        return "smallest" if self.slots_per_gpu is None else "slots-per-gpu"


def plan_from_files(
    paths: Sequence[Path],
    read: ReadOptions,
    request: PlanRequest,
    *,
    progress: Callable[[float], None] | None = None,
    around_map: Callable[[MapTasks], MapTasks] | None = None,
) -> Plan:
    """Read recordings, solve, judge and return the plan.

    ``around_map`` is given the map that runs the search and returns the one to use instead, say one that remembers
    results.

    Raises
    ------
    CodedError
        Any of the packages' errors; nothing was written.
    """
    problem, setting = _prepare(paths, read, request)
    with open_workers(request.workers) as crew:
        return _plan(problem, setting, request, crew=crew, progress=progress, around_map=around_map)


def plans_by_window(
    paths: Sequence[Path],
    read: ReadOptions,
    request: PlanRequest,
    *,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Plan]:
    """Read recordings once and plan every window (phase, task, time slice) for itself; plans by window name."""
    problem, setting = _prepare(paths, read, request)
    names = problem.demand.window_names
    plans = {}
    with open_workers(request.workers) as crew:
        for index, name in enumerate(names):
            alone = replace(problem, demand=problem.demand.pick_windows([index]))
            part = _part_of(progress, start=index / len(names), share=1 / len(names))
            plans[name] = _plan(alone, _setting_of_window(setting, index), request, crew=crew, progress=part)
    return plans


def _setting_of_window(setting: Setting, index: int) -> Setting:
    planned_on = setting.traces.planned_on
    alone = None if planned_on is None else WindowTokens(planned_on, index)
    return replace(setting, traces=replace(setting.traces, planned_on=alone))


def _part_of(progress: Callable[[float], None] | None, *, start: float, share: float) -> Callable[[float], None] | None:
    return None if progress is None else lambda done: progress(start + share * done)


def _plan(
    problem: Problem,
    setting: Setting,
    request: PlanRequest,
    *,
    crew: Crew | None,
    progress: Callable[[float], None] | None,
    around_map: Callable[[MapTasks], MapTasks] | None = None,
) -> Plan:
    if problem.objective is Objective.TRAFFIC and setting.traces.planned_on is not None:
        sample = take_sample(setting.traces.planned_on, gpus=problem.topology.gpus, seed=request.seed)
        problem = replace(problem, tokens=sample)
    fan_out = None if crew is None else FanOut(crew)
    map_tasks: MapTasks | None = fan_out if around_map is None else around_map(fan_out or map)
    effort = Effort(seed=request.seed, time_limit_s=request.time_limit_s, threads=request.threads, map_tasks=map_tasks)
    moving_less: tuple[Layout, ...] = ()
    if request.pareto:
        solution, moving_less = solve_with_pareto(problem, effort=effort, progress=progress)
    else:
        fit_to = _target(request) if request.fit else None
        problem, solution = solve_problem(problem, effort=effort, fit_to=fit_to, progress=progress)
    if fan_out is not None:
        solution = replace(solution, notices=(*solution.notices, *fan_out.notices))
    return make_plan(problem, solution, setting, moving_less=moving_less)


def _prepare(paths: Sequence[Path], read: ReadOptions, request: PlanRequest) -> tuple[Problem, Setting]:
    gpus = live_gpu_count(request.live_gpus, gpus=request.gpus)
    nodes = request.nodes if gpus == request.gpus else 1
    topology, notices = read_topology(request.topology_file, gpus=gpus, nodes=nodes)
    loaded = _load(paths, read, request, gpus=gpus, holdout=request.holdout)
    judged_on, traces = loaded.holdout, Traces(loaded.tokens, loaded.holdout_tokens, request.sample_tokens)
    if request.test:
        tested = _load(request.test, read, request, gpus=gpus)
        judged_on, traces = tested.demand, replace(traces, judged_on=tested.tokens)
        notices = [*notices, *tested.notices]
    setting = Setting(
        model=_model(loaded, read),
        inputs=tuple(PlanInput(name=each["name"], sha256=each["sha256"]) for each in loaded.inputs),
        options=_options(request),
        target_was_asked=request.local_target is not None,
        judged_on=judged_on,
        expert_groups=request.expert_groups or (read.model.expert_groups if read.model else None),
        expert_bytes=request.expert_bytes,
        notices=(*notices, *loaded.notices, *_live_notice(request, gpus)),
        traces=traces,
        step=step_of(request, read),
    )
    return _problem(request, loaded, topology, read, step=setting.step), setting


def _load(
    paths: Sequence[Path], read: ReadOptions, request: PlanRequest, *, gpus: int, holdout: float | None = None
) -> LoadedDemand:
    return load_demand(
        paths,
        read,
        gpus=gpus,
        window_by=request.window_by,
        sources=request.sources,
        holdout=holdout,
        phase=request.phase,
    )


def _problem(
    request: PlanRequest, loaded: LoadedDemand, topology: Topology, read: ReadOptions, *, step: Step | None
) -> Problem:
    experts, gpus = loaded.demand.require_not_empty().experts, topology.gpus
    require_live_slots(experts=experts, slots_per_gpu=request.slots_per_gpu, live=gpus, gpus=request.gpus)
    slots = slots_from_options(
        experts=experts,
        gpus=gpus,
        slots_per_gpu=request.slots_per_gpu,
        redundant=request.redundant,
        fit=request.fit,
    )
    redundant = 0 if slots is None else slots * gpus - experts
    check_draft(
        draft_experts=request.draft_experts, draft_redundant=request.draft_redundant, redundant=redundant, gpus=gpus
    )
    return Problem(
        demand=loaded.demand,
        topology=topology,
        slots_per_gpu=slots if slots is not None else smallest_slots_per_gpu(experts=experts, gpus=gpus),
        objective=request.objective,
        local_scope=request.local_scope,
        max_imbalance=request.max_imbalance,
        hedge=_hedge(request, loaded.demand),
        least_local=_target_asked_for(request, slots),
        dispatch=request.dispatch,
        current=_current(request, loaded, topology, read),
        max_moved_slots=request.most_moved_slots,
        step=step,
        max_overflow=request.max_overflow,
        capacity_factor=request.capacity_factor,
    )


def _hedge(request: PlanRequest, demand: Demand) -> float:
    """Return the part of the local share to give up; without windows to compare nothing says what for."""
    if request.hedge is not None:
        return request.hedge
    return DEFAULT_HEDGE if demand.windows > 1 else 0.0


def _current(request: PlanRequest, loaded: LoadedDemand, topology: Topology, read: ReadOptions) -> Layout | None:
    if request.current is None:
        return None
    layout, _ = read_layout(
        request.current,
        gpus=topology.gpus,
        experts=loaded.demand.experts,
        layers=loaded.demand.layers,
        model=read.model,
    )
    return layout


def _target_asked_for(request: PlanRequest, slots: int | None) -> float:
    """Return the local share that hedging must keep: a target that was given, or that slots are chosen for.

    With given slots and no target the default one is nobody's wish; a plan below it would never be hedged.
    """
    return _target(request) if slots is None or request.local_target is not None else 0.0


def _target(request: PlanRequest) -> float:
    return DEFAULT_LOCAL_TARGET if request.local_target is None else request.local_target


def step_of(request: PlanRequest, read: ReadOptions) -> Step | None:
    """Return the step that times are predicted for, None without hardware."""
    if request.hardware is None:
        if request.step_phase is not None or request.step_tokens is not None:
            raise BadOption("--step-phase and --step-tokens need --hardware, the profile to predict times with.")
        return None
    if read.model is None:
        raise BadOption(
            "--hardware needs --model: the size of an expert and top-k, from a config.json or one of "
            f"{', '.join(model_names())}."
        )
    phase: Phase = request.step_phase or request.phase or "prefill"
    return Step(
        hardware=read_hardware(request.hardware),
        phase=phase,
        expert=read.model.expert,
        top_k=read.model.top_k,
        tokens_per_gpu=USUAL_TOKENS[phase] if request.step_tokens is None else request.step_tokens,
    )


def _options(request: PlanRequest) -> PlanOptions:
    return PlanOptions(
        objective=request.objective,
        local_scope=request.local_scope,
        dispatch=request.dispatch,
        max_imbalance=request.max_imbalance,
        max_imbalance_used=request.max_imbalance,
        window_by=request.window_by,
        slots_from=request.slots_from,
        seed=request.seed,
        local_target=_target(request),
        holdout_share=request.holdout or 0.0,
        capacity_factor=request.capacity_factor,
        time_limit_s=request.time_limit_s,
        max_moved_slots=request.most_moved_slots,
        sample_tokens=request.sample_tokens,
        max_overflow=request.max_overflow,
        hardware=request.hardware,
    )


def _model(loaded: LoadedDemand, read: ReadOptions) -> PlannedModel:
    return PlannedModel(
        name=read.model.name if read.model else loaded.header.model,
        layers=loaded.demand.layers,
        experts=loaded.demand.experts,
        top_k=read.model.top_k if read.model else loaded.header.top_k,
        moe_layers=loaded.demand.moe_layers,
    )


def _live_notice(request: PlanRequest, gpus: int) -> tuple[Notice, ...]:
    if gpus == request.gpus:
        return ()
    detail = f"planned for the {gpus} GPUs {request.live_gpus} of {request.gpus}, in that order, as one node."
    return (Notice("LIVE_GPUS_ONLY", detail),)
