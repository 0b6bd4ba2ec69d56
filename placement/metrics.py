"""What the ruler reports: the metrics of a layout under a demand, one name each everywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from placement.demand import Sources


@dataclass(frozen=True)
class CapacityMetrics:
    """What lies above the caps at one capacity factor: shares of demand, see :class:`Metrics`."""

    capacity_factor: float
    overflow_share: float
    rerouted: float
    dropped: float


@dataclass(frozen=True)
class WindowMetrics:
    """One window's figures; ``name`` is the window's name."""

    name: str
    tokens: int
    local_gpu: float | None
    local_node: float | None
    imbalance: float
    overflow_share: float
    rerouted: float
    dropped: float


@dataclass(frozen=True)
class LayerMetrics:
    """One layer's figures over all windows; ``layer`` is the decoder layer."""

    layer: int
    local_gpu: float | None
    imbalance: float


@dataclass(frozen=True)
class Metrics:
    """Figures of one layout under one demand.

    Attributes
    ----------
    local_gpu, local_node : float or None
        Share of demand served on the token's home GPU / home node, 0..1. None where undefined
        (no all-to-all backend: every rank sees every token); ``local_reason`` says why.
    imbalance : float
        Sum over windows and MoE layers of the largest GPU load, over the same sum of mean loads, >= 1.
    balancedness : float
        ``1 / imbalance``.
    sglang_balancedness : float
        Mean over windows and MoE layers of mean load / largest load: SGLang's own figure.
    overflow_share, rerouted, dropped : float
        Shares of demand above ``capacity_factor`` x mean GPU load, that other replicas can take, that remain.
    capacity : tuple of CapacityMetrics
        The same three at the usual capacity factors and at ``capacity_factor``, ascending.
    worst_window, worst_layer
        Those with the largest imbalance.
    windows, layers
        Every window and every MoE layer.
    sources : {"measured", "uniform"}
    dispatch : str
        The dispatch rule the figures hold for.
    """

    local_gpu: float | None
    local_node: float | None
    local_reason: str | None
    imbalance: float
    balancedness: float
    sglang_balancedness: float
    capacity_factor: float
    overflow_share: float
    rerouted: float
    dropped: float
    capacity: tuple[CapacityMetrics, ...]
    worst_window: WindowMetrics
    worst_layer: LayerMetrics
    windows: tuple[WindowMetrics, ...]
    layers: tuple[LayerMetrics, ...]
    duplicated_slots: int
    sources: Sources
    dispatch: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
