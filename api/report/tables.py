"""The tables of the page: layouts side by side, windows, layers and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from api.report.numbers import ABSENT, count, fine_percent, percent, ratio, tenths, times
from api.report.relative import over_row_mean, total_over_mean
from api.report.verdict import local_name
from placement.metrics import Metrics, WindowMetrics
from placement.plan import Plan
from placement.plan_metrics import PlanMetrics

OURS = "moeplan"
MOST_WINDOWS = 60


@dataclass(frozen=True)
class Column:
    """A figure's name as it is everywhere, how to read it, and which direction is better."""

    name: str
    value: Callable[[PlanMetrics], float | None]
    show: Callable[[float | None], str]
    higher_is_better: bool


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and whether no other layout is better in its column."""

    text: str
    is_best: bool = False


@dataclass(frozen=True)
class LayoutRow:
    """One layout of the comparison."""

    name: str
    is_ours: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Comparison:
    """Column names and one row per layout."""

    columns: tuple[str, ...]
    rows: tuple[LayoutRow, ...]


@dataclass(frozen=True)
class WindowRow:
    """One window's figures as text."""

    name: str
    tokens: str
    local_gpu: str
    local_node: str
    imbalance: str
    overflow_share: str
    rerouted: str
    dropped: str
    is_worst: bool


@dataclass(frozen=True)
class Windows:
    """Rows of a demand's windows, those with the largest imbalance where there are too many to show."""

    rows: tuple[WindowRow, ...]
    left_out: int


@dataclass(frozen=True)
class LayerRow:
    """One layer: its heat, its load before and after, its moves."""

    layer: int
    tokens: str
    hottest: str
    local_gpu: str
    before: str
    after: str
    moved: str


@dataclass(frozen=True)
class GpuRow:
    """One GPU: its load before and after, its moves."""

    gpu: int
    node: int
    before: str
    after: str
    tokens: str
    received: str


def layouts_by_name(plan: Plan) -> dict[str, PlanMetrics]:
    """Return the plan itself, then the baselines in their order."""
    return {OURS: plan.metrics, **plan.baselines}


def comparison(plan: Plan) -> Comparison:
    """Put all layouts side by side, the best figure of every column marked."""
    return _side_by_side(plan, [column for column in _columns(plan) if column is not None])


def capacity(plan: Plan) -> Comparison:
    """Put what overflows and what is dropped side by side: at every capacity factor, and in single steps."""
    columns = []
    for place, at in enumerate(plan.metrics.capacity):
        for name in ("overflow_share", "dropped"):
            columns.append(Column(f"{name} at {at.capacity_factor:g}", _at_factor(place, name), fine_percent, False))
    for place, step in enumerate(plan.metrics.step_overflow):
        for name in ("overflow_share", "dropped"):
            title = f"{name} in {step.phase} steps at {step.capacity_factor:g}"
            columns.append(Column(title, _in_steps(place, name), fine_percent, False))
    return _side_by_side(plan, columns)


def _side_by_side(plan: Plan, columns: list[Column]) -> Comparison:
    layouts = layouts_by_name(plan)
    best = [_best(column, list(layouts.values())) for column in columns]
    rows = []
    for name, metrics in layouts.items():
        cells = []
        for column, top in zip(columns, best, strict=True):
            text = column.show(column.value(metrics))
            cells.append(Cell(text, is_best=top is not None and text == column.show(top)))
        rows.append(LayoutRow(name, name == OURS, tuple(cells)))
    return Comparison(tuple(column.name for column in columns), tuple(rows))


def _at_factor(place: int, name: str) -> Callable[[PlanMetrics], float | None]:
    return lambda metrics: getattr(metrics.capacity[place], name)


def _in_steps(place: int, name: str) -> Callable[[PlanMetrics], float | None]:
    return lambda metrics: getattr(metrics.step_overflow[place], name)


def windows(metrics: Metrics) -> Windows:
    """List windows in the order they came, or the worst of them where there are more than :data:`MOST_WINDOWS`."""
    shown = metrics.windows
    if len(shown) > MOST_WINDOWS:
        shown = tuple(sorted(shown, key=lambda window: -window.imbalance)[:MOST_WINDOWS])
    rows = tuple(_window_row(window, metrics.worst_window) for window in shown)
    return Windows(rows, left_out=len(metrics.windows) - len(shown))


def layer_rows(plan: Plan) -> tuple[LayerRow, ...]:
    """List every MoE layer: the table behind the maps."""
    heat_LE = over_row_mean(plan.heat_LE)
    before_LG, after_LG = over_row_mean(plan.load_before_LG), over_row_mean(plan.load_after_LG)
    local_of = {layer.layer: layer.local_gpu for layer in plan.metrics.layers}
    rows = []
    for layer in plan.model.moe_layers:
        if not plan.heat_LE[layer].any():
            continue
        hottest = int(plan.heat_LE[layer].argmax())
        rows.append(
            LayerRow(
                layer=layer,
                tokens=count(int(plan.heat_LE[layer].sum())),
                hottest=f"{hottest} ({times(float(heat_LE[layer, hottest]))})",
                local_gpu=percent(local_of.get(layer)),
                before=ratio(float(before_LG[layer].max()), digits=2),
                after=ratio(float(after_LG[layer].max()), digits=2),
                moved=count(plan.moves.by_layer[layer]),
            )
        )
    return tuple(rows)


def gpu_rows(plan: Plan) -> tuple[GpuRow, ...]:
    """List every GPU: the table behind the totals."""
    before_G, after_G = total_over_mean(plan.load_before_LG), total_over_mean(plan.load_after_LG)
    tokens_G, nodes_G = plan.load_after_LG.sum(axis=0), plan.topology.node_of_gpu_G
    return tuple(
        GpuRow(
            gpu=gpu,
            node=int(nodes_G[gpu]),
            before=ratio(float(before_G[gpu]), digits=3),
            after=ratio(float(after_G[gpu]), digits=3),
            tokens=count(int(tokens_G[gpu])),
            received=count(plan.moves.received_by_gpu[gpu]),
        )
        for gpu in range(plan.topology.gpus)
    )


def _columns(plan: Plan) -> list[Column | None]:
    scope = local_name(plan)
    has_holdout, has_nodes = plan.metrics.holdout is not None, plan.topology.nodes > 1
    return [
        Column("local_gpu", lambda metrics: metrics.local_gpu, percent, True),
        Column(f"holdout {scope}", _of_holdout(scope), percent, True) if has_holdout else None,
        Column("local_node", lambda metrics: metrics.local_node, percent, True) if has_nodes else None,
        Column("imbalance", lambda metrics: metrics.imbalance, ratio, False),
        Column("holdout imbalance", _of_holdout("imbalance"), ratio, False) if has_holdout else None,
        Column("worst_window", lambda metrics: metrics.worst_window.imbalance, ratio, False),
        Column("balancedness", lambda metrics: metrics.balancedness, ratio, True),
        Column("sglang_balancedness", lambda metrics: metrics.sglang_balancedness, ratio, True),
        Column("overflow_share", lambda metrics: metrics.overflow_share, fine_percent, False),
        Column("rerouted", lambda metrics: metrics.rerouted, fine_percent, False),
        Column("dropped", lambda metrics: metrics.dropped, fine_percent, False),
        *_token_columns(plan, has_holdout=has_holdout),
        *_time_columns(plan),
        Column("moved_slots", lambda metrics: metrics.moved_slots, _whole, False),
    ]


def _token_columns(plan: Plan, *, has_holdout: bool) -> list[Column | None]:
    """Columns of what needs a token trace; none without one."""
    metrics = plan.metrics
    columns: list[Column | None] = []
    if metrics.gpus_per_token is not None:
        columns.append(Column("gpus_per_token", lambda row: row.gpus_per_token, ratio, False))
    if has_holdout and metrics.holdout is not None and metrics.holdout.gpus_per_token is not None:
        columns.append(Column("holdout gpus_per_token", _of_holdout("gpus_per_token"), ratio, False))
    if metrics.nodes_per_token is not None and plan.topology.nodes > 1:
        columns.append(Column("nodes_per_token", lambda row: row.nodes_per_token, ratio, False))
    if metrics.active_experts is not None:
        columns.append(Column("active_experts", lambda row: row.active_experts, ratio, False))
    return columns


def _time_columns(plan: Plan) -> list[Column | None]:
    """Columns of predicted times; none without hardware."""
    if plan.metrics.moe_layer is None:
        return []
    holdout = plan.metrics.holdout
    has_both = holdout is not None and holdout.moe_layer is not None
    return [
        Column("moe_layer_us", _microseconds, tenths, False),
        Column("holdout moe_layer_us", lambda row: _microseconds(row.holdout), tenths, False) if has_both else None,
    ]


def _microseconds(metrics: Metrics | None) -> float | None:
    return None if metrics is None or metrics.moe_layer is None else 1e6 * metrics.moe_layer.moe_layer_s


def _best(column: Column, layouts: list[PlanMetrics]) -> float | None:
    values = [value for metrics in layouts if (value := column.value(metrics)) is not None]
    if column.name in ("moved_slots", "rerouted") or not values:
        return None  # costs and consequences: fewer is not better by itself
    return max(values) if column.higher_is_better else min(values)


def _of_holdout(name: str) -> Callable[[PlanMetrics], float | None]:
    return lambda metrics: getattr(metrics.holdout, name) if metrics.holdout else None


def _whole(value: float | None) -> str:
    return ABSENT if value is None else count(int(value))


def _window_row(window: WindowMetrics, worst: WindowMetrics) -> WindowRow:
    return WindowRow(
        name=window.name,
        tokens=count(window.tokens),
        local_gpu=percent(window.local_gpu),
        local_node=percent(window.local_node),
        imbalance=ratio(window.imbalance),
        overflow_share=fine_percent(window.overflow_share),
        rerouted=fine_percent(window.rerouted),
        dropped=fine_percent(window.dropped),
        is_worst=window == worst,
    )
