"""A plan on a terminal: the comparison, the windows, and what is proven."""

from __future__ import annotations

from collections.abc import Mapping

from api.cli.output import TextTable, capacity_table, metrics_table, number, print_notices, print_table, windows_table
from api.time_words import microseconds, time_sentences
from placement.comparison import OURS
from placement.metrics import Metrics
from placement.plan import Plan
from placement.problem import LocalScope, Objective
from placement.step_time import MoeLayerTime

TIME_COLUMNS = ("moe_layer_us", "experts_us", "all_to_all_us", "worst window_us")


def print_plan(plan: Plan) -> None:
    """Print the comparison table, the bound and the windows of a plan."""
    nodes = "1 node" if plan.topology.nodes == 1 else f"{plan.topology.nodes} nodes"
    title = (
        f"{plan.slots_per_gpu} slots per GPU, {plan.topology.gpus} GPUs on {nodes}, "
        f"{plan.options.objective}, {plan.options.dispatch}, {plan.metrics.sources} sources"
    )
    rows = {**plan.baselines, OURS: plan.metrics}
    print_table(metrics_table(rows, title=title))
    judged = {name: row.holdout for name, row in rows.items() if row.holdout is not None}
    if judged:
        print_table(metrics_table(judged, title="judged on what was not planned on (--test or --holdout)"))
    print_table(capacity_table(rows))
    if len(plan.metrics.windows) > 1:
        print_table(windows_table(plan.metrics))
    if plan.pareto:
        print_table(_moves_table(plan))
    if plan.metrics.moe_layer is not None:
        print_table(times_table({name: row.moe_layer for name, row in rows.items()}))
        if judged:
            apart = {name: metrics.moe_layer for name, metrics in judged.items()}
            print_table(times_table(apart, where=" on what was not planned on"))
    print(_verdict(plan))
    print_notices([notice.to_dict() for notice in plan.notices])


def times_table(times: Mapping[str, MoeLayerTime | None], *, where: str = "") -> TextTable:
    """Build the table of predicted times by layout; ``where`` follows the title."""
    table = TextTable("layout", *TIME_COLUMNS, title=f"predicted time of a MoE layer, in microseconds{where}")
    for name, time in times.items():
        if time is not None:
            values = (time.moe_layer_s, time.expert_s, time.all_to_all_s, time.worst_window_s)
            table.add_row(name, *(microseconds(value) for value in values))
    return table


def _moves_table(plan: Plan) -> TextTable:
    """Build the table of plans that move less: what they move, and what they are worth."""
    local = "local_node" if plan.options.local_scope is LocalScope.NODE else "local_gpu"
    traffic = any(point.gpus_per_token is not None for point in plan.pareto)
    table = TextTable(
        "moved_slots",
        "moved_bytes",
        local,
        "imbalance of the worst window",
        *(["gpus_per_token"] if traffic else []),
        title=f"gain against moves from the {plan.moves.before} layout",
    )
    for point in plan.pareto:
        moved_bytes = "-" if point.moved_bytes is None else str(point.moved_bytes)
        share = point.local_node if plan.options.local_scope is LocalScope.NODE else point.local_gpu
        copies = [number(point.gpus_per_token)] if traffic else []
        table.add_row(str(point.moved_slots), moved_bytes, number(share), number(point.imbalance), *copies)
    return table


def _verdict(plan: Plan) -> str:
    """Say in a few sentences what was reached, what is proven, and what it costs."""
    bound = plan.bound
    proven = [
        f"{name} {'>=' if name in ('imbalance', 'gpus_per_token') else '<='} {number(value)} ({bound.relaxation[name]})"
        for name, value in (
            ("local_gpu", bound.local_gpu),
            ("local_node", bound.local_node),
            ("imbalance", bound.imbalance),
            ("gpus_per_token", bound.gpus_per_token),
        )
        if value is not None
    ]
    if bound.moe_layer_s is not None:
        proven.append(f"moe_layer_us >= {microseconds(bound.moe_layer_s)} ({bound.relaxation['moe_layer_s']})")
    gap = "" if plan.gap is None else f", gap to the bound {plan.gap:.2%}"
    seconds = "" if plan.solve_seconds is None else f", solved in {plan.solve_seconds:.2f} s"
    target = plan.options.local_target
    local = "undefined" if plan.local is None else f"{plan.local:.1%}"
    reached = plan.local is not None and plan.local >= target
    planned_on = "" if plan.metrics.holdout is None else " on what was planned on" + _kept_apart(plan)
    worst, cap = plan.metrics.worst_window.imbalance, plan.options.max_imbalance_used
    most = plan.options.max_moved_slots
    allowed = "" if most is None else f"; {most} were allowed"
    slots = len(plan.model.moe_layers) * plan.slots_per_gpu * plan.topology.gpus
    return "\n".join(
        (
            f"status {plan.status}{gap}{seconds}",
            *(f"proven: {each}" for each in proven),
            *_copies(plan),
            f"local share {local}: the target of {target:.0%} is {'reached' if reached else 'missed'}{planned_on}",
            f"imbalance of the worst window {number(worst)}, limit {cap:.4g}{_overflow(plan)}",
            *(f"time: {each}" for each in time_sentences(plan)),
            f"moves {plan.moves.moved_slots} of {slots} slots from the {plan.moves.before} layout{allowed}",
        )
    )


def _copies(plan: Plan) -> list[str]:
    """Say what a plan for traffic reached, beside eplb."""
    eplb = plan.baselines.get("eplb")
    if plan.options.objective is not Objective.TRAFFIC or eplb is None:
        return []
    rows: list[tuple[str, Metrics, Metrics]] = [("", plan.metrics, eplb)]
    if plan.metrics.holdout is not None and eplb.holdout is not None:
        rows.append((" on what was kept apart", plan.metrics.holdout, eplb.holdout))
    return [
        f"gpus_per_token {number(ours.gpus_per_token)}{where}, eplb {number(theirs.gpus_per_token)}"
        f" ({ours.gpus_per_token / theirs.gpus_per_token - 1:+.1%})"
        for where, ours, theirs in rows
        if ours.gpus_per_token is not None and theirs.gpus_per_token
    ]


def _overflow(plan: Plan) -> str:
    most = plan.options.max_overflow
    if most is None:
        return ""
    worst = max(window.overflow_share for window in plan.metrics.windows)
    return f"\noverflow_share of the worst window {number(worst)}, limit {most:g} at {plan.options.capacity_factor:g}"


def _kept_apart(plan: Plan) -> str:
    holdout = plan.metrics.holdout
    share = None
    if holdout is not None:
        share = holdout.local_node if plan.options.local_scope is LocalScope.NODE else holdout.local_gpu
    return "" if share is None else f"; {share:.1%} on what was kept apart"
