"""A hardware profile: every figure with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from placement.errors import BadHardwareProfile
from placement.hardware.all_to_all import AllToAll
from placement.hardware.expert_times import ExpertTimes
from placement.hardware.figures import require_figure

FORMAT = "moeplan-hardware"
FORMAT_VERSION = 1

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class HardwareProfile:
    """What a GPU model and its links reach.

    Attributes
    ----------
    name : str
        Short, like ``h200``.
    gpu : str
        The GPU's full name.
    memory_gib : float
        Memory of one GPU.
    expert : ExpertTimes
    prefill, decode : AllToAll
        Each phase has its own kernels.
    sources : mapping
        Where each figure comes from, by its path (``expert.fixed_s``); every figure has one, a path may name a whole
        table (``decode``).

    Raises
    ------
    BadHardwareProfile
        Naming the figure without a source, or the source without a figure.
    """

    name: str
    gpu: str
    memory_gib: float
    expert: ExpertTimes
    prefill: AllToAll
    decode: AllToAll
    sources: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.gpu.strip():
            raise BadHardwareProfile("name and gpu must not be empty: they say which machine the figures are of.")
        require_figure(self.memory_gib, name="memory_gib", above=0)
        paths = tuple(self._paths())
        for path in paths:
            if not any(path == known or path.startswith(f"{known}.") for known in self.sources):
                raise BadHardwareProfile(f"sources has no entry for {path}; say where every figure comes from.")
        for known, text in self.sources.items():
            if not any(path == known or path.startswith(f"{known}.") for path in paths):
                raise BadHardwareProfile(f"sources names {known!r}, which is no figure of this profile.")
            if not text.strip():
                raise BadHardwareProfile(f"sources.{known} is empty; say where the figure comes from.")
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))

    def all_to_all(self, phase: Phase) -> AllToAll:
        return self.prefill if phase == "prefill" else self.decode

    def to_dict(self) -> dict[str, Any]:
        """Return what a profile file holds."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "gpu": self.gpu,
            "memory_gib": self.memory_gib,
            "expert": {**_table(self.expert), "flops_per_s": dict(self.expert.flops_per_s)},
            "prefill": _table(self.prefill),
            "decode": _table(self.decode),
            "sources": dict(self.sources),
        }

    def _paths(self) -> Iterator[str]:
        """Give the path of every figure."""
        document = self.to_dict()
        yield "memory_gib"
        for table in ("expert", "prefill", "decode"):
            for key, value in document[table].items():
                if isinstance(value, dict):
                    yield from (f"{table}.{key}.{inner}" for inner in value)
                elif key != "sends":
                    yield f"{table}.{key}"


def _table(figures: ExpertTimes | AllToAll) -> dict[str, Any]:
    """Return the plain figures that are known."""
    known = {each.name: getattr(figures, each.name) for each in fields(figures)}
    return {key: str(value) if key == "sends" else value for key, value in known.items() if value is not None}
