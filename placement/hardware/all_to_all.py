"""How long tokens travel to their experts and back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from placement.errors import BadHardwareProfile
from placement.hardware.figures import require_figure


class Sends(StrEnum):
    """What travels."""

    PER_GPU = "per-gpu"
    """A token goes once to every GPU that has one of its experts, once over RDMA to every node (DeepEP normal)."""

    PER_EXPERT = "per-expert"
    """A token goes once for each of its experts on another GPU (DeepEP low latency)."""


@dataclass(frozen=True)
class AllToAll:
    """Time of dispatch and combine together, on the GPU that takes longest.

    ``fixed + handled bytes / handling rate + max over links (bytes / bandwidth)``, where a GPU's bytes over a link are
    the larger of those it sends and those it receives at dispatch; combine sends the same copies back.

    Attributes
    ----------
    sends : Sends
    fixed_s : float
        Dispatch and combine with nothing to send.
    handled_bytes_per_s : float or None
        Rate at which a GPU sorts its routed tokens and adds up their results, wherever they come from; None where
        that is part of ``fixed_s``.
    nvlink_bytes_per_s, rdma_bytes_per_s : float
        Within a node and between nodes, in one direction.
    dispatch_bytes_per_value, combine_bytes_per_value : float
        2 for bf16, 1 for fp8.

    Raises
    ------
    BadHardwareProfile
        Naming the figure.
    """

    sends: Sends
    fixed_s: float
    nvlink_bytes_per_s: float
    rdma_bytes_per_s: float
    dispatch_bytes_per_value: float
    combine_bytes_per_value: float
    handled_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.sends not in list(Sends):
            raise BadHardwareProfile(f"all_to_all.sends is {self.sends!r}; it is per-gpu or per-expert.")
        for name in (
            "fixed_s",
            "nvlink_bytes_per_s",
            "rdma_bytes_per_s",
            "dispatch_bytes_per_value",
            "combine_bytes_per_value",
        ):
            require_figure(getattr(self, name), name=f"all_to_all.{name}", above=0)
        if self.handled_bytes_per_s is not None:
            require_figure(self.handled_bytes_per_s, name="all_to_all.handled_bytes_per_s", above=0)

    def seconds(
        self,
        *,
        rows: npt.ArrayLike,
        nvlink_copies: npt.ArrayLike,
        rdma_copies: npt.ArrayLike,
        hidden: int,
    ) -> npt.NDArray[np.float64]:
        """Return the time of every GPU, float64 of the arrays' shape.

        Parameters
        ----------
        rows
            Routed tokens that the GPU computes.
        nvlink_copies, rdma_copies
            Copies over each link: the larger of those sent and those received.
        hidden
            Values of one token.
        """
        both_ways_bytes = hidden * (self.dispatch_bytes_per_value + self.combine_bytes_per_value)
        nvlink_s = np.asarray(nvlink_copies, dtype=np.float64) * (both_ways_bytes / self.nvlink_bytes_per_s)
        rdma_s = np.asarray(rdma_copies, dtype=np.float64) * (both_ways_bytes / self.rdma_bytes_per_s)
        seconds: npt.NDArray[np.float64] = self.fixed_s + np.maximum(nvlink_s, rdma_s)
        if self.handled_bytes_per_s is not None:
            seconds = seconds + np.asarray(rows, dtype=np.float64) * (both_ways_bytes / self.handled_bytes_per_s)
        return seconds
