"""What a solver returns: a layout, and what is proven about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from placement.layout import Layout
from placement.notice import Notice


class Status(StrEnum):
    """How good a plan is known to be."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    TARGET_MISSED = "target_missed"


@dataclass(frozen=True)
class Bound:
    """A proven limit that no layout of this problem can pass, absent (None) where nothing is proven.

    Attributes
    ----------
    local_gpu, local_node : float or None
        Upper bounds on the shares.
    imbalance : float or None
        Lower bound on the worst window's imbalance.
    relaxation : dict
        For each bound that is present, the name of the relaxation it is the optimum of.
    gpus_per_token : float or None
        Lower bound on copies per token, of the very tokens that were planned on.
    moe_layer_s : float or None
        Lower bound on the predicted time of a MoE layer.
    """

    local_gpu: float | None
    local_node: float | None
    imbalance: float | None
    relaxation: dict[str, str]
    gpus_per_token: float | None = None
    moe_layer_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "local_gpu": self.local_gpu,
            "local_node": self.local_node,
            "imbalance": self.imbalance,
            "gpus_per_token": self.gpus_per_token,
            "moe_layer_s": self.moe_layer_s,
            "proven": bool(self.relaxation),
            "relaxation": dict(self.relaxation),
        }


@dataclass(frozen=True)
class Solution:
    """A layout with its bound.

    Attributes
    ----------
    layout : Layout
    status : Status
        ``optimal`` only when the bound or an exhausted search proves it.
    bound : Bound
    max_imbalance : float
        The cap that was used: the one asked for, or the smallest one found where that is out of reach.
    solve_seconds : float
    notices : tuple of Notice
    beside : mapping
        Layouts of the same slots that were planned on the way for other objectives, by their names, to be shown too.
    """

    layout: Layout
    status: Status
    bound: Bound
    max_imbalance: float
    solve_seconds: float
    notices: tuple[Notice, ...] = ()
    beside: Mapping[str, Layout] = field(default_factory=dict)
