"""How long one GPU computes its experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from placement.errors import BadHardwareProfile
from placement.hardware.figures import require_figure
from placement.model_shape import ExpertShape

ARITHMETIC = ("bf16", "fp8")
"""Number formats in which products are computed; weights of fewer bits are computed in one of them."""


@dataclass(frozen=True)
class ExpertTimes:
    """Time of the expert products (gate, up, down) of one layer on one GPU.

    A roofline with a soft corner::

        fixed + ((rows x FLOPs / rate) ^ overlap + (active experts x bytes / bandwidth) ^ overlap) ^ (1 / overlap)

    With ``overlap`` 1 arithmetic and weight reading follow each other, with a large one the longer hides the other.

    Attributes
    ----------
    fixed_s : float
        What even an idle layer costs: launches and the kernels around the products.
    weight_bytes_per_s : float
        Rate at which the weights of active experts are read.
    overlap : float
        Above or equal to 1.
    flops_per_s : mapping
        Reached rate of arithmetic for each of :data:`ARITHMETIC` that the GPU has.

    Raises
    ------
    BadHardwareProfile
        Naming the figure.
    """

    fixed_s: float
    weight_bytes_per_s: float
    overlap: float
    flops_per_s: Mapping[str, float]

    def __post_init__(self) -> None:
        require_figure(self.fixed_s, name="expert.fixed_s", above=0)
        require_figure(self.weight_bytes_per_s, name="expert.weight_bytes_per_s", above=0)
        require_figure(self.overlap, name="expert.overlap", above=0)
        if self.overlap < 1:
            raise BadHardwareProfile(f"expert.overlap is {self.overlap}; it is at least 1 (nothing overlaps).")
        if "bf16" not in self.flops_per_s or not set(self.flops_per_s) <= set(ARITHMETIC):
            raise BadHardwareProfile(
                f"expert.flops_per_s has {sorted(self.flops_per_s)}; it needs bf16 and may have fp8."
            )
        for arithmetic, rate in self.flops_per_s.items():
            require_figure(rate, name=f"expert.flops_per_s.{arithmetic}", above=0)
        object.__setattr__(self, "flops_per_s", MappingProxyType(dict(self.flops_per_s)))

    def seconds(
        self, rows: npt.ArrayLike, active_experts: npt.ArrayLike, *, expert: ExpertShape
    ) -> npt.NDArray[np.float64]:
        """Return the time for so many routed tokens over so many active experts.

        Parameters
        ----------
        rows, active_experts
            Of any equal shape; expected values need not be whole.
        expert
            Its arithmetic falls back to bf16 where the profile has no rate for it.

        Returns
        -------
        ndarray
            float64 seconds, of the same shape.
        """
        rate = self.flops_per_s.get(expert.arithmetic, self.flops_per_s["bf16"])
        arithmetic_s = np.asarray(rows, dtype=np.float64) * (expert.flops_per_row / rate)
        reading_s = np.asarray(active_experts, dtype=np.float64) * (expert.weight_bytes / self.weight_bytes_per_s)
        # The longer one outside the power, so that nothing under- or overflows.
        longer_s, shorter_s = np.maximum(arithmetic_s, reading_s), np.minimum(arithmetic_s, reading_s)
        ratio = np.divide(shorter_s, longer_s, out=np.zeros_like(longer_s), where=longer_s > 0)
        seconds: npt.NDArray[np.float64] = self.fixed_s + longer_s * (1 + ratio**self.overlap) ** (1 / self.overlap)
        return seconds
