"""Two windows of a recording, or two layouts, side by side: what differs most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from api.errors import BadRequest
from api.service import plans as plan_service
from api.service.context import Service
from api.service.frames import Frames, FramesAsked, FramesCache, PhaseAsked
from api.service.traces import require_ready
from api.store.models import Plan, Trace
from placement.diff import LayoutDiff, diff
from placement.plan import Plan as MadePlan

SHOWN_MOVERS = 25


@dataclass(frozen=True)
class Mover:
    """An expert whose share of its layer changed: both shares as multiples of uniform."""

    layer: int
    expert: int
    a: float
    b: float


@dataclass(frozen=True)
class WindowDrift:
    """How far two windows are apart.

    Attributes
    ----------
    names : (str, str)
    variation : float
        Total variation between the shares of a layer's experts, 0..1, the mean over layers with traffic in both:
        the share of tokens that would have to choose another expert.
    variation_by_layer : tuple of (int, float)
    movers : tuple of Mover
        Those with the largest change, up to :data:`SHOWN_MOVERS`.
    """

    names: tuple[str, str]
    variation: float
    variation_by_layer: tuple[tuple[int, float], ...]
    movers: tuple[Mover, ...]


@dataclass(frozen=True)
class LayoutComparison:
    """Two plans' layouts: both as made, what moves from one to the other, and experts whose replicas change most."""

    a: MadePlan
    b: MadePlan
    moves: LayoutDiff
    movers: tuple[Mover, ...]


def window_drift(
    service: Service, cache: FramesCache, trace: Trace, *, a: int, b: int, phase: PhaseAsked | None
) -> WindowDrift:
    """Compare two windows by their numbers.

    Raises
    ------
    WrongState, BadRequest
    """
    found = cache.get(service, require_ready(trace), None, FramesAsked(phase=phase))
    for window in (a, b):
        if not 0 <= window < len(found.window_names):
            raise BadRequest(
                f"the recording has no window {window}; there are windows 0 to {len(found.window_names) - 1}."
            )
    return drift_between(found, a=a, b=b)


def drift_between(found: Frames, *, a: int, b: int) -> WindowDrift:
    """Compare two windows of frames."""
    share_LE = [_shares(found.values_WLC[window]) for window in (a, b)]
    both_L = np.flatnonzero(~np.isnan(share_LE[0][:, 0]) & ~np.isnan(share_LE[1][:, 0]))
    change_LE = np.abs(share_LE[1][both_L] - share_LE[0][both_L])
    variation_L = change_LE.sum(axis=1) / 2
    experts = share_LE[0].shape[1]
    order = np.argsort(-change_LE, axis=None, kind="stable")[:SHOWN_MOVERS]
    movers = []
    for place, expert in zip(*np.unravel_index(order, change_LE.shape), strict=True):
        if change_LE[place, expert] > 0:
            layer = int(both_L[place])
            before, after = (float(shares[layer, expert] * experts) for shares in share_LE)
            movers.append(Mover(layer, int(expert), before, after))
    return WindowDrift(
        names=(found.window_names[a], found.window_names[b]),
        variation=float(variation_L.mean()) if both_L.size else 0.0,
        variation_by_layer=tuple(zip(both_L.tolist(), variation_L.tolist(), strict=True)),
        movers=tuple(movers),
    )


def compare_layouts(service: Service, a: Plan, b: Plan) -> LayoutComparison:
    """Compare the layouts of two plans.

    Raises
    ------
    WrongState, LayoutMismatch, SlotCountMismatch
        A plan is not made, or they are for another model or another number of slots.
    """
    made_a, made_b = plan_service.made(service, a), plan_service.made(service, b)
    moves = diff(made_a.layout, made_b.layout, made_b.topology, expert_bytes=b.request.get("expert_bytes"))
    counts_a, counts_b = (made.layout.replicas_LEG.sum(axis=2).astype(int) for made in (made_a, made_b))
    change_LE = np.abs(counts_b - counts_a)
    order = np.argsort(-change_LE, axis=None, kind="stable")[:SHOWN_MOVERS]
    movers = tuple(
        Mover(int(layer), int(expert), float(counts_a[layer, expert]), float(counts_b[layer, expert]))
        for layer, expert in zip(*np.unravel_index(order, change_LE.shape), strict=True)
        if change_LE[layer, expert] > 0
    )
    return LayoutComparison(made_a, made_b, moves, movers)


def _shares(values_LE: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Return shares of every layer, float64 [L, E]; NaN in layers without tokens."""
    sums_L1 = values_LE.sum(axis=1, keepdims=True).astype(np.float64)
    share_LE = np.full(values_LE.shape, np.nan)
    np.divide(values_LE, sums_L1, out=share_LE, where=sums_L1 > 0)
    return share_LE
