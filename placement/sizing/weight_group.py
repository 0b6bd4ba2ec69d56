"""Weights of one kind: how many, how large, and how engines divide them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from placement.weight_formats import WeightFormat


class Split(StrEnum):
    """Among which GPUs weights are divided."""

    WHOLE = "whole"
    """On every GPU."""

    ATTENTION = "attention"
    """Among the GPUs that share one token's attention: all of them, or with DP attention those of one rank."""

    TENSOR = "tensor"
    """Among all GPUs."""

    SHARED = "shared"
    """Shared experts: whole with an all-to-all backend, divided among all GPUs without one."""


@dataclass(frozen=True)
class WeightGroup:
    """Weights that are divided in the same way.

    Attributes
    ----------
    name : str
    parameters : int
        In the checkpoint; 0 for copies that an engine makes.
    weight_bytes : int
        Scales included.
    split : Split
    pieces : int
        Most parts that they can be divided into (heads); 0 for any number.
    """

    name: str
    parameters: int
    weight_bytes: int
    split: Split
    pieces: int = 0

    def copied(self) -> WeightGroup:
        """Return the same weights as a copy that is no part of the checkpoint."""
        return replace(self, parameters=0)

    def bytes_on_gpu(self, parts: int) -> float:
        """Return the bytes on one of the GPUs that they are divided among."""
        return self.weight_bytes / (min(parts, self.pieces) if self.pieces else parts)


def matrix(
    name: str, outputs: int, inputs: int, kind: WeightFormat, split: Split, *, pieces: int = 0, count: int = 1
) -> WeightGroup:
    """Return ``count`` matrices [outputs, inputs]."""
    weight_bytes = count * kind.matrix_bytes(outputs, inputs)
    return WeightGroup(name, count * outputs * inputs, weight_bytes, split, pieces)


def vector(name: str, values: int, kind: WeightFormat, *, count: int = 1) -> WeightGroup:
    """Return ``count`` vectors, which every GPU has whole."""
    return WeightGroup(name, count * values, int(count * values * kind.bytes_per_weight), Split.WHOLE)
