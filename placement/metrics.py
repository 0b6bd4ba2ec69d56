"""What the ruler reports: the metrics of a layout under a demand, one name each everywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from placement.demand import Sources
from placement.step_time import MoeLayerTime


@dataclass(frozen=True)
class CapacityMetrics:
    """What lies above the caps at one capacity factor: shares of demand, see :class:`Metrics`."""

    capacity_factor: float
    overflow_share: float
    rerouted: float
    dropped: float


@dataclass(frozen=True)
class StepOverflow(CapacityMetrics):
    """The same for single engine steps of one phase, as shares of their tokens; ``steps`` were looked at."""

    phase: str
    steps: int


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
class TokenBasis:
    """What the figures from a token trace rest on.

    Attributes
    ----------
    tokens, recorded_tokens : int
        Tokens that copies were counted for, and tokens of the recording.
    steps, recorded_steps : int
        Engine steps that active experts were counted in, and steps of the recording; 0 where steps are unknown.
    gpus_per_token_interval, nodes_per_token_interval : (float, float) or None
        95 % confidence intervals for the whole recording; None where every token was counted.
    """

    tokens: int
    recorded_tokens: int
    steps: int
    recorded_steps: int
    gpus_per_token_interval: tuple[float, float] | None = None
    nodes_per_token_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class TokenMetrics:
    """Figures of one layout under a token trace; see :class:`Metrics` for the names."""

    gpus_per_token: float | None
    nodes_per_token: float | None
    active_experts: float | None
    token_basis: TokenBasis
    step_overflow: tuple[StepOverflow, ...] = ()


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
    gpus_per_token, nodes_per_token : float or None
        Mean distinct remote GPUs / nodes that one token must be sent to per layer. None without a token trace, and
        where nothing is sent (no all-to-all backend).
    active_experts : float or None
        Largest GPU's distinct experts hit per decode step, the mean over steps and layers. None without a token trace
        that knows its steps.
    token_basis : TokenBasis or None
        What these three rest on; None without a token trace.
    step_overflow : tuple of StepOverflow
        Overflow of single steps (decode steps, prefill batches) at ``capacity_factor``; empty without a token trace
        that knows its steps.
    moe_layer : MoeLayerTime or None
        Predicted time of a MoE layer, where hardware was given.
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
    gpus_per_token: float | None = None
    nodes_per_token: float | None = None
    active_experts: float | None = None
    token_basis: TokenBasis | None = None
    step_overflow: tuple[StepOverflow, ...] = ()
    moe_layer: MoeLayerTime | None = None

    def with_time(self, time: MoeLayerTime | None) -> Self:
        """Return the same figures with a predicted time."""
        return replace(self, moe_layer=time)

    def with_tokens(self, found: TokenMetrics) -> Self:
        """Return the same figures with those from a token trace."""
        return replace(
            self,
            gpus_per_token=found.gpus_per_token,
            nodes_per_token=found.nodes_per_token,
            active_experts=found.active_experts,
            token_basis=found.token_basis,
            step_overflow=found.step_overflow,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
