"""From a problem to a plan: solve, judge beside the baselines, count the moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from placement import solver
from placement.comparison import CURRENT, NO_TRACES, OURS, Comparison, Traces, compare
from placement.demand import Demand
from placement.diff import diff
from placement.layout import Layout
from placement.notice import Notice
from placement.pareto import MOVE_SHARES, move_points
from placement.plan import Plan
from placement.plan_header import PlanInput, PlannedModel, PlanOptions
from placement.plan_metrics import Moves, PlanMetrics
from placement.problem import LocalScope, Problem
from placement.score import loads_WLG
from placement.solution import Solution, Status
from placement.solver.batches import MapTasks
from placement.solver.course import Watch, unwatched
from placement.step_time import Step

OVERFLOW_TOLERANCE = 1e-8
"""Overflow shares that differ by less are equal."""


@dataclass(frozen=True)
class Effort:
    """How hard to try.

    Attributes
    ----------
    seed : int
        Of everything random; equal seeds give equal plans.
    time_limit_s : float or None
        Wall-clock limit of the solver.
    threads : int
        Threads of the search and of the exact solver.
    map_tasks : callable or None
        Who runs the search instead of threads; the plan is the same.
    """

    seed: int = 0
    time_limit_s: float | None = None
    threads: int = 1
    map_tasks: MapTasks | None = None


@dataclass(frozen=True)
class Setting:
    """What a plan needs beside its problem.

    Attributes
    ----------
    model : PlannedModel
    inputs : tuple of PlanInput
    options : PlanOptions
        ``max_imbalance_used`` is filled in here.
    target_was_asked : bool
        Whether missing ``options.local_target`` makes the status ``target_missed``.
    judged_on : Demand or None
        Windows kept apart.
    expert_groups : int or None
    expert_bytes : int or None
        Bytes of one expert's weights, for ``moved_bytes``.
    notices : tuple of Notice
        Warnings from reading the inputs.
    traces : Traces
        Token traces of the demand planned from and judged on.
    step : Step or None
        What to predict the time of a MoE layer for, where hardware was given.
    """

    model: PlannedModel
    inputs: tuple[PlanInput, ...]
    options: PlanOptions
    target_was_asked: bool = False
    judged_on: Demand | None = None
    expert_groups: int | None = None
    expert_bytes: int | None = None
    notices: tuple[Notice, ...] = ()
    traces: Traces = NO_TRACES
    step: Step | None = None


def solve_problem(
    problem: Problem,
    *,
    effort: Effort,
    fit_to: float | None = None,
    progress: Callable[[float], None] | None = None,
    watch: Watch = unwatched,
) -> tuple[Problem, Solution]:
    """Solve, or find the fewest slots per GPU that reach the share ``fit_to``; return the problem really solved."""
    if fit_to is None:
        solution = solver.solve(
            problem,
            seed=effort.seed,
            time_limit_s=effort.time_limit_s,
            threads=effort.threads,
            map_tasks=effort.map_tasks,
            progress=progress,
            watch=watch,
        )
        return problem, solution
    slots_per_gpu, solution = solver.fit(
        problem,
        local_target=fit_to,
        seed=effort.seed,
        time_limit_s=effort.time_limit_s,
        threads=effort.threads,
        map_tasks=effort.map_tasks,
        progress=progress,
        watch=watch,
    )
    return replace(problem, slots_per_gpu=slots_per_gpu), solution


def solve_with_pareto(
    problem: Problem,
    *,
    effort: Effort,
    progress: Callable[[float], None] | None = None,
    watch: Watch = unwatched,
) -> tuple[Solution, tuple[Layout, ...]]:
    """Solve, and plan within parts of the free plan's moves; return the solution and the layouts of those plans."""
    solution, within = solver.solve_within_shares(
        problem,
        MOVE_SHARES,
        seed=effort.seed,
        time_limit_s=effort.time_limit_s,
        threads=effort.threads,
        map_tasks=effort.map_tasks,
        progress=progress,
        watch=watch,
    )
    return solution, tuple(each.layout for each in within)


def make_plan(problem: Problem, solution: Solution, setting: Setting, *, moving_less: Sequence[Layout] = ()) -> Plan:
    """Judge a solution with the ruler, beside the baselines, and put everything into a plan.

    ``moving_less`` are layouts for the plan's ``pareto``.
    """
    options = replace(setting.options, max_imbalance_used=solution.max_imbalance, hedge=problem.hedge)
    comparison = compare(
        problem,
        solution.layout,
        judged_on=setting.judged_on,
        capacity_factor=options.capacity_factor,
        seed=options.seed,
        expert_groups=setting.expert_groups,
        traces=setting.traces,
        step=setting.step,
        beside=solution.beside,
    )
    rows = dict(comparison.rows)
    metrics = rows.pop(OURS)
    local = metrics.local_node if options.local_scope is LocalScope.NODE else metrics.local_gpu
    missed = setting.target_was_asked and (local is None or local < options.local_target)
    return Plan(
        moeplan_version=version("moeplan"),
        model=setting.model,
        topology=problem.topology,
        inputs=setting.inputs,
        options=options,
        status=Status.TARGET_MISSED if missed else solution.status,
        layout=solution.layout,
        metrics=metrics,
        bound=solution.bound,
        baselines=rows,
        moves=_moves(comparison, moe_layers=problem.demand.moe_layers, expert_bytes=setting.expert_bytes),
        heat_LE=problem.demand.tokens_WLE.sum(axis=0),
        load_before_LG=loads_WLG(comparison.before, problem.demand, problem.topology, dispatch=problem.dispatch).sum(
            axis=0
        ),
        load_after_LG=loads_WLG(solution.layout, problem.demand, problem.topology, dispatch=problem.dispatch).sum(
            axis=0
        ),
        notices=_unique((*setting.notices, *solution.notices, *comparison.notices, *_above_limit(options, metrics))),
        solve_seconds=solution.solve_seconds,
        pareto=move_points(problem, moving_less, before=comparison.before, expert_bytes=setting.expert_bytes),
    )


def _moves(comparison: Comparison, *, moe_layers: Sequence[int], expert_bytes: int | None) -> Moves:
    moves = diff(comparison.before, comparison.layouts[OURS], expert_bytes=expert_bytes, moe_layers=moe_layers)
    return Moves(
        before="current" if CURRENT in comparison.layouts else "trivial",
        moved_slots=moves.moved_slots,
        moved_bytes=moves.moved_bytes,
        by_layer=moves.moved_L,
        received_by_gpu=moves.received_G,
    )


def _above_limit(options: PlanOptions, metrics: PlanMetrics) -> tuple[Notice, ...]:
    """Let the ruler have the last word on the cap on overflow: static dispatch is planned for its expectation only."""
    if options.max_overflow is None:
        return ()
    worst = max(metrics.windows, key=lambda window: window.overflow_share)
    if worst.overflow_share <= options.max_overflow + OVERFLOW_TOLERANCE:
        return ()
    detail = (
        f"window {worst.name!r} has the overflow_share {worst.overflow_share:.4f} at the capacity factor "
        f"{options.capacity_factor:g}; at most {options.max_overflow:g} was asked for."
    )
    return (Notice("OVERFLOW_ABOVE_LIMIT", detail),)


def _unique(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    return tuple(dict.fromkeys(notices))
