"""One layout beside the others: same slots, same dispatch, same ruler, one run.

A plan is never shown alone. Beside it stand the engine's start (trivial), chance (random), what engines balance by
themselves (eplb) and replication of the hottest experts; see the protocol in the README.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from placement.baselines import BASELINES, RANDOM_SEEDS, plan_eplb
from placement.demand import Demand
from placement.diff import diff
from placement.dispatch import Dispatch
from placement.drift import profile_drift_notices
from placement.layout import Layout
from placement.metrics import Metrics
from placement.notice import Notice
from placement.plan_metrics import PlanMetrics
from placement.problem import Problem
from placement.score import Copies, count_copies, loads_WLG, moe_layer_time, score, score_tokens
from placement.step_time import Step
from placement.tokens import TokenStream

OURS = "moeplan"
CURRENT = "current"
TRIVIAL = "trivial"


@dataclass(frozen=True)
class Traces:
    """Token traces of the demand planned from and of the demand to judge on, for the metrics that need them.

    Attributes
    ----------
    planned_on, judged_on : TokenStream or None
        None where only counts are known.
    sample_tokens : int or None
        Tokens to count copies for, see :func:`placement.score.score_tokens`; None for all.
    """

    planned_on: TokenStream | None = None
    judged_on: TokenStream | None = None
    sample_tokens: int | None = None


NO_TRACES = Traces()


@dataclass(frozen=True)
class Comparison:
    """Figures by layout name, in the order to be shown; the plan's own row is :data:`OURS`.

    Attributes
    ----------
    before : Layout
        The layout that moves are counted from: the current one where given, else the trivial one.
    layouts : mapping
        Every compared layout.
    rows : mapping
        Metrics on the demand planned from, with moves and, where there is demand to judge on, ``holdout``.
    notices : tuple of Notice
    """

    before: Layout
    layouts: Mapping[str, Layout]
    rows: Mapping[str, PlanMetrics]
    notices: tuple[Notice, ...]


def compare(
    problem: Problem,
    planned: Layout,
    *,
    judged_on: Demand | None = None,
    capacity_factor: float = 1.25,
    seed: int = 0,
    expert_groups: int | None = None,
    traces: Traces = NO_TRACES,
    step: Step | None = None,
    beside: Mapping[str, Layout] = MappingProxyType({}),
) -> Comparison:
    """Score the planned layout beside every baseline.

    Parameters
    ----------
    problem, planned
        What was asked and the layout that came out.
    judged_on
        Demand of later or other windows, with the same layers and experts.
    capacity_factor
        Capacity of a GPU as a multiple of the mean load.
    seed
        First seed of the random baseline (median of five).
    expert_groups
        Router groups of the model, for hierarchical EPLB on several nodes.
    traces
        Token traces of the same demand, for copies per token and active experts.
    step
        What to predict the time of a MoE layer for; None to leave it out.
    beside
        More layouts to compare with, by name.
    """
    present = {} if problem.current is None else {CURRENT: problem.current}
    baselines = {name: make(problem, seed=seed) for name, make in BASELINES.items()}
    baselines["random"] = _median_random(problem, seed=seed)
    eplb = plan_eplb(problem, expert_groups=expert_groups)
    baselines["eplb"] = eplb.layout
    layouts = {**present, **baselines, **beside, OURS: planned}
    before = layouts.get(CURRENT, layouts[TRIVIAL])
    planned_on = _with_tokens(
        {
            name: _score(each, problem, problem.demand, capacity_factor=capacity_factor)
            for name, each in layouts.items()
        },
        layouts,
        problem,
        traces.planned_on,
        sample_tokens=traces.sample_tokens,
        seed=seed,
        capacity_factor=capacity_factor,
    )
    judged: dict[str, Metrics] = {}
    if judged_on is not None:
        judged = _with_tokens(
            {name: _score(each, problem, judged_on, capacity_factor=capacity_factor) for name, each in layouts.items()},
            layouts,
            problem,
            traces.judged_on,
            sample_tokens=traces.sample_tokens,
            seed=seed,
            capacity_factor=capacity_factor,
        )
    if step is not None:
        planned_on = _with_times(planned_on, layouts, problem, problem.demand, traces.planned_on, traces, step)
        if judged_on is not None:
            judged = _with_times(judged, layouts, problem, judged_on, traces.judged_on, traces, step)
    rows = {
        name: PlanMetrics.of(
            planned_on[name],
            moved_slots=diff(before, layout, moe_layers=problem.demand.moe_layers).moved_slots,
            holdout=judged.get(name),
        )
        for name, layout in layouts.items()
    }
    drift = profile_drift_notices(problem.demand, judged_on) if judged_on is not None else ()
    return Comparison(before=before, layouts=layouts, rows=rows, notices=(*eplb.notices, *drift))


def _with_tokens(
    metrics: Mapping[str, Metrics],
    layouts: Mapping[str, Layout],
    problem: Problem,
    stream: TokenStream | None,
    *,
    sample_tokens: int | None,
    seed: int,
    capacity_factor: float,
) -> dict[str, Metrics]:
    """Add what a token trace tells, where there is one."""
    if stream is None:
        return dict(metrics)
    found = score_tokens(
        layouts,
        stream,
        problem.topology,
        dispatch=problem.dispatch,
        sample_tokens=sample_tokens,
        seed=seed,
        capacity_factor=capacity_factor,
    )
    return {name: each.with_tokens(found[name]) if name in found else each for name, each in metrics.items()}


def _median_random(problem: Problem, *, seed: int) -> Layout:
    """Return the random layout whose imbalance is the median of five seeds."""
    layouts = [BASELINES["random"](problem, seed=seed + offset) for offset in RANDOM_SEEDS]
    by_imbalance = sorted(layouts, key=lambda layout: _imbalance(layout, problem))
    return by_imbalance[len(layouts) // 2]


def _imbalance(layout: Layout, problem: Problem) -> float:
    loads = loads_WLG(layout, problem.demand, problem.topology, dispatch=problem.dispatch)
    return float(loads.max(axis=2).sum() / loads.mean(axis=2).sum())


def _score(layout: Layout, problem: Problem, demand: Demand, *, capacity_factor: float) -> Metrics:
    return score(layout, demand, problem.topology, dispatch=problem.dispatch, capacity_factor=capacity_factor)


def _with_times(
    metrics: Mapping[str, Metrics],
    layouts: Mapping[str, Layout],
    problem: Problem,
    demand: Demand,
    stream: TokenStream | None,
    traces: Traces,
    step: Step,
) -> dict[str, Metrics]:
    """Add predicted times, with copies counted by window where there is a token trace that is not to be sampled."""
    copies: Mapping[str, Copies] = {}
    if stream is not None and traces.sample_tokens is None and problem.dispatch is not Dispatch.EVEN:
        copies = count_copies(layouts, stream, problem.topology, dispatch=problem.dispatch, windows=demand.windows)
    found = {}
    for name, each in metrics.items():
        time = moe_layer_time(
            layouts[name], demand, problem.topology, dispatch=problem.dispatch, step=step, copies=copies.get(name)
        )
        found[name] = each.with_time(time)
    return found
