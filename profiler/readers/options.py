"""What the caller knows about an input and the input does not say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placement.errors import BadOption
from placement.model_shape import ModelShape


@dataclass(frozen=True)
class ReadOptions:
    """Options of every reader.

    Attributes
    ----------
    model : ModelShape or None
        Shape of the model, which tells layer numberings apart.
    experts : int or None
        Routed experts per layer, where neither the input nor ``model`` says.
    expected_ranks : int or None
        How many ranks recorded, for inputs with one file per rank.
    allow_partial : bool
        Plan from a recording although files of some ranks are missing.
    map_history : Path or None
        Layouts the engine had while recording, for dumps that hold slot ids.
    """

    model: ModelShape | None = None
    experts: int | None = None
    expected_ranks: int | None = None
    allow_partial: bool = False
    map_history: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("experts", self.experts), ("expected_ranks", self.expected_ranks)):
            if value is not None and value < 1:
                raise BadOption(f"{name} is {value}; it must be at least 1.")
        if self.model is not None and self.experts is not None and self.experts != self.model.experts:
            raise BadOption(f"experts is {self.experts}, but the model has {self.model.experts}; give one of them.")

    @property
    def known_experts(self) -> int | None:
        """Routed experts per layer, where the caller knows."""
        return self.model.experts if self.model is not None else self.experts
