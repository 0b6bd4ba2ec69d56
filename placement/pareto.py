"""Gain against moves: what plans that move less than the free one are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from placement.diff import diff
from placement.layout import Layout
from placement.problem import LocalScope, Objective, Problem
from placement.score import score, score_tokens

MOVE_SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Parts of the free plan's moves that the points are planned within."""


@dataclass(frozen=True)
class MovePoint:
    """A plan by what it moves and what it is worth, as the ruler says.

    Attributes
    ----------
    moved_slots : int
    moved_bytes : int or None
        None where the size of an expert is unknown.
    local_gpu, local_node : float or None
        None where nothing is local.
    imbalance : float
        The worst window's.
    gpus_per_token : float or None
        Of the tokens that were planned on; None for objectives that do without.
    """

    moved_slots: int
    moved_bytes: int | None
    local_gpu: float | None
    local_node: float | None
    imbalance: float
    gpus_per_token: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def move_points(
    problem: Problem, layouts: Sequence[Layout], *, before: Layout, expert_bytes: int | None = None
) -> tuple[MovePoint, ...]:
    """Judge layouts with the ruler and return those that no other dominates, by moves.

    One dominates another when it moves no more, serves no less in the problem's ``local_scope`` (for traffic: needs no
    more copies), is no less balanced in its worst window, and is better in one of the three.
    """
    points = dict.fromkeys(_point(problem, layout, before=before, expert_bytes=expert_bytes) for layout in layouts)
    goods = {point: _goods(problem, point) for point in points}
    kept = [point for point in points if not any(_dominates(other, goods[point]) for other in goods.values())]
    return tuple(sorted(kept, key=lambda point: (point.moved_slots, point.imbalance)))


def _point(problem: Problem, layout: Layout, *, before: Layout, expert_bytes: int | None) -> MovePoint:
    moves = diff(before, layout, expert_bytes=expert_bytes, moe_layers=problem.demand.moe_layers)
    metrics = score(layout, problem.demand, problem.topology, dispatch=problem.dispatch)
    copies = None
    if problem.objective is Objective.TRAFFIC and problem.tokens is not None:
        stream = [problem.tokens.tokens]
        found = score_tokens({"point": layout}, stream, problem.topology, dispatch=problem.dispatch)
        copies = found["point"].gpus_per_token
    return MovePoint(
        moves.moved_slots,
        moves.moved_bytes,
        metrics.local_gpu,
        metrics.local_node,
        metrics.worst_window.imbalance,
        copies,
    )


def _goods(problem: Problem, point: MovePoint) -> tuple[float, float, float]:
    """Return what is better the larger it is."""
    local = point.local_node if problem.local_scope is LocalScope.NODE else point.local_gpu
    if point.gpus_per_token is not None:
        local = -point.gpus_per_token
    return (-point.moved_slots, 0.0 if local is None else local, -point.imbalance)


def _dominates(a: tuple[float, float, float], b: tuple[float, float, float]) -> bool:
    return a != b and all(better >= good for better, good in zip(a, b, strict=True))
