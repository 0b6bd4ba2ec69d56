"""Plan from files: what the command line does, and a job of the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from api.loading import LoadedDemand, load_demand, read_topology
from api.plan_request import PlanRequest
from api.slots_option import check_draft, live_gpu_count, require_live_slots, slots_from_options
from api.step_option import step_of
from api.workers import Crew, FanOut, open_workers
from placement.comparison import Traces
from placement.demand import Demand
from placement.layout import Layout
from placement.notice import Notice
from placement.plan import Plan
from placement.plan_header import PlanInput, PlannedModel, PlanOptions
from placement.planner import Effort, Setting, make_plan, solve_problem, solve_with_pareto
from placement.problem import Objective, Problem
from placement.slots import smallest_slots_per_gpu
from placement.solver.batches import MapTasks
from placement.solver.course import Watch, unwatched
from placement.step_time import Step
from placement.token_sample import take_sample
from placement.tokens import WindowTokens
from placement.topology import Topology
from profiler.formats import read_layout
from profiler.readers.options import ReadOptions

DEFAULT_LOCAL_TARGET = 0.6

DEFAULT_HEDGE = 0.005
"""Part of the local share that is given up for balance on other traffic, where several windows show how it varies."""


def plan_from_files(
    paths: Sequence[Path],
    read: ReadOptions,
    request: PlanRequest,
    *,
    progress: Callable[[float], None] | None = None,
    around_map: Callable[[MapTasks], MapTasks] | None = None,
    watch: Watch = unwatched,
) -> Plan:
    """Read recordings, solve, judge and return the plan.

    ``around_map`` is given the map that runs the search and returns the one to use instead, say one that remembers
    results. ``watch`` is told how the search goes, see :mod:`placement.solver.course`.

    Raises
    ------
    CodedError
        Any of the packages' errors; nothing was written.
    """
    problem, setting = _prepare(paths, read, request)
    with open_workers(request.workers) as crew:
        return _plan(problem, setting, request, crew=crew, progress=progress, around_map=around_map, watch=watch)


def problem_from_files(paths: Sequence[Path], read: ReadOptions, request: PlanRequest) -> Problem:
    """Read recordings and return what would be solved for them. Raises as :func:`plan_from_files` does."""
    return _prepare(paths, read, request)[0]


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
    watch: Watch = unwatched,
) -> Plan:
    if _asks_for_tokens(problem, request) and setting.traces.planned_on is not None:
        sample = take_sample(setting.traces.planned_on, gpus=problem.topology.gpus, seed=request.seed)
        problem = replace(problem, tokens=sample)
    fan_out = None if crew is None else FanOut(crew)
    map_tasks: MapTasks | None = fan_out if around_map is None else around_map(fan_out or map)
    effort = Effort(seed=request.seed, time_limit_s=request.time_limit_s, threads=request.threads, map_tasks=map_tasks)
    moving_less: tuple[Layout, ...] = ()
    if request.pareto:
        solution, moving_less = solve_with_pareto(problem, effort=effort, progress=progress, watch=watch)
    else:
        fit_to = _target(request) if request.fit else None
        problem, solution = solve_problem(problem, effort=effort, fit_to=fit_to, progress=progress, watch=watch)
    if fan_out is not None:
        solution = replace(solution, notices=(*solution.notices, *fan_out.notices))
    return make_plan(problem, solution, setting, moving_less=moving_less)


def _asks_for_tokens(problem: Problem, request: PlanRequest) -> bool:
    """Tell whether the plan depends on single tokens; times are judged by counts where copies are only sampled."""
    if problem.objective is Objective.STEP_TIME:
        return request.sample_tokens is None
    return problem.objective is Objective.TRAFFIC


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
    step = step_of(request, read)
    setting = Setting(
        model=_model(loaded, read),
        inputs=tuple(PlanInput(name=each["name"], sha256=each["sha256"]) for each in loaded.inputs),
        options=_options(request, step),
        target_was_asked=request.local_target is not None,
        judged_on=judged_on,
        expert_groups=request.expert_groups or (read.model.expert_groups if read.model else None),
        expert_bytes=request.expert_bytes,
        notices=(*notices, *loaded.notices, *_live_notice(request, gpus)),
        traces=traces,
        step=step,
    )
    return _problem(request, loaded, topology, read, step=step), setting


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


def _options(request: PlanRequest, step: Step | None) -> PlanOptions:
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
        hardware=None if step is None else step.hardware.name,
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
