"""What a rebalancing cycle has found so far, as the gates look at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self

from placement.metrics import Metrics
from placement.problem import LocalScope, Objective

PARTIAL = {
    "WINDOWS_LOST": "windows were lost",
    "ENGINE_IDLE": "the engine stopped serving before its end",
    "LAYOUT_CHANGED": "somebody changed the layout meanwhile",
    "MISSING_RANKS": "ranks are missing",
    "TOKEN_CONSERVATION": "tokens were not counted in every layer",
}
"""Warnings of a recording that is not to be trusted with a push."""

LEAST_WINDOWS = 2
"""One to plan from and one to judge on."""


@dataclass(frozen=True, kw_only=True)
class Timeliness:
    """When it is asked whether the engine may be changed.

    Attributes
    ----------
    at : datetime
    last_change_at : datetime or None
        End of the engine's last rollout that moved anything.
    taken_back_in_row : int
        How many of the engine's last cycles that pushed had to take it back, since one was kept.
    """

    at: datetime
    last_change_at: datetime | None
    taken_back_in_row: int = 0

    def to_json(self) -> dict[str, Any]:
        last = self.last_change_at
        return {
            "at": self.at.isoformat(),
            "last_change_at": None if last is None else last.isoformat(),
            "taken_back_in_row": self.taken_back_in_row,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        last = value["last_change_at"]
        return cls(
            at=datetime.fromisoformat(value["at"]),
            last_change_at=None if last is None else datetime.fromisoformat(last),
            taken_back_in_row=value["taken_back_in_row"],
        )


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a recording is good for.

    Attributes
    ----------
    tokens : int
        Routed tokens.
    windows : int
        Windows with any.
    warnings : tuple of str
        Codes.
    """

    tokens: int
    windows: int
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(tokens=value["tokens"], windows=value["windows"], warnings=tuple(value["warnings"]))

    @classmethod
    def of_trace(cls, facts: Mapping[str, Any], warnings: Sequence[Mapping[str, str]]) -> Self:
        """Read what is kept of a recorded trace."""
        return cls(
            tokens=int(facts["routed_tokens"]),
            windows=sum(1 for tokens in facts["window_routed_tokens"].values() if tokens),
            warnings=tuple(each["code"] for each in warnings),
        )


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Jensen-Shannon distance between the demand now and that of the running layout's plan, over MoE layers.

    ``mean`` is None where the engine runs no layout of a plan that is known.
    """

    mean: float | None
    worst: float | None = None
    worst_layer: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(mean=value["mean"], worst=value["worst"], worst_layer=value["worst_layer"])


@dataclass(frozen=True)
class Figures:
    """A layout on the held-out windows, by the ruler."""

    local_gpu: float | None
    local_node: float | None
    imbalance: float
    worst_window_imbalance: float
    balancedness: float
    overflow_share: float

    @classmethod
    def of(cls, metrics: Metrics) -> Self:
        return cls(
            local_gpu=metrics.local_gpu,
            local_node=metrics.local_node,
            imbalance=metrics.imbalance,
            worst_window_imbalance=metrics.worst_window.imbalance,
            balancedness=metrics.balancedness,
            overflow_share=metrics.overflow_share,
        )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The running layout beside the plan, on the held-out windows.

    Attributes
    ----------
    objective, local_scope
        Of the plan: they say which figure counts.
    running, planned : Figures
    max_imbalance : float
        The plan's own cap.
    moved_slots : int
    moved_bytes : int or None
        None where the size of an expert is not known.
    recorded_at : datetime
        End of the recording.
    engine_changed : str
        How the engine differs from the one that was planned for; empty where it does not.
    """

    objective: Objective
    local_scope: LocalScope
    running: Figures
    planned: Figures
    max_imbalance: float
    moved_slots: int
    moved_bytes: int | None
    recorded_at: datetime
    engine_changed: str = ""

    @property
    def metric(self) -> str:
        """Name of the figure that counts: the objective's, or imbalance where no token has a home GPU."""
        local = "local_node" if self.local_scope is LocalScope.NODE else "local_gpu"
        if self.objective is Objective.BALANCE or getattr(self.running, local) is None:
            return "worst_window_imbalance"
        return local

    @property
    def gain(self) -> float:
        """How much better the plan is, in the figure that counts; below 0 where it is worse."""
        before, after = self.values
        return before - after if self.metric == "worst_window_imbalance" else after - before

    @property
    def relative_gain(self) -> float:
        before, _ = self.values
        return self.gain / before if before > 0 else float(self.gain > 0)

    @property
    def values(self) -> tuple[float, float]:
        """The figure of the running layout and of the plan."""
        return float(getattr(self.running, self.metric)), float(getattr(self.planned, self.metric))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "recorded_at": self.recorded_at.isoformat()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        read = {
            "objective": Objective(value["objective"]),
            "local_scope": LocalScope(value["local_scope"]),
            "running": Figures(**value["running"]),
            "planned": Figures(**value["planned"]),
            "recorded_at": datetime.fromisoformat(value["recorded_at"]),
        }
        return cls(**{**value, **read})


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All of it; a part that is None is not known yet."""

    timeliness: Timeliness | None = None
    recording: Recording | None = None
    drift: Drift | None = None
    compared: Compared | None = None
