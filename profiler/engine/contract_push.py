"""The engine plugin's messages for a push.

Like :mod:`profiler.engine.contract`, it imports only the standard library and numpy.

A push is checked as a whole before anything moves, then applied chunk by chunk between steps. A layer is the unit: it
is either new or old, weights and map. Two pushes never overlap: the second one is refused with 409 while the first is
under way. With ``static`` dispatch the tables are those of the resulting map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.contract import layers_from
from profiler.engine.json_fields import ContractViolation, Fields
from profiler.engine.map_rules import map_from_json

MAX_PAUSE_S = 60.0
"""Longest pause between two chunks of a push."""


@dataclass(frozen=True, eq=False)
class PushRequest:
    """Body of ``PUT /moeplan/placement``.

    Attributes
    ----------
    map_LP : ndarray
        int32 [L, P], the whole ``physical_to_logical_map``, all decoder layers.
    layers : tuple of int or None
        Rows of it to apply; None means all.
    expected_layout_hash : str or None
        Refused with 409 unless the engine runs this layout.
    layers_per_chunk : int or None
        Layers applied between two steps; None means all at once.
    pause_s : float
        Time between two chunks, 0 to :data:`MAX_PAUSE_S` seconds, in which the engine serves.
    dry_run : bool
        Check and plan the chunks, but move nothing.
    """

    map_LP: npt.NDArray[np.int32]
    layers: tuple[int, ...] | None = None
    expected_layout_hash: str | None = None
    layers_per_chunk: int | None = None
    pause_s: float = 0.0
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        message = {name: value for name, value in vars(self).items() if name != "map_LP"}
        message["layers"] = None if self.layers is None else list(self.layers)
        message["physical_to_logical_map"] = self.map_LP.tolist()
        return message

    @classmethod
    def from_json(cls, message: object) -> PushRequest:
        fields = Fields(message, "push")
        map_LP = map_from_json(fields.value("physical_to_logical_map"), "physical_to_logical_map")
        pause_s = fields.number("pause_s") if "pause_s" in fields else 0.0
        if pause_s > MAX_PAUSE_S:
            raise ContractViolation(f"push.pause_s is {pause_s:g}; at most {MAX_PAUSE_S:g} seconds are allowed.")
        return cls(
            map_LP=map_LP,
            layers=fields.optional("layers", lambda name: layers_from(fields, name, layers=len(map_LP))),
            expected_layout_hash=fields.optional("expected_layout_hash", fields.text),
            layers_per_chunk=fields.optional("layers_per_chunk", lambda name: fields.integer(name, minimum=1)),
            pause_s=pause_s,
            dry_run=fields.flag("dry_run") if "dry_run" in fields else False,
        )


@dataclass(frozen=True)
class ChunkReport:
    """What became of one chunk of a push.

    Attributes
    ----------
    layers : tuple of int
    status : {"applied", "planned", "failed", "skipped"}
        ``planned`` in a dry run. Of a ``failed`` chunk some layers may be new: the answer's ``new_layers`` say which.
    seconds : float or None
        Time the chunk took on the slowest rank; None unless applied.
    changed_slots, changed_bytes : int
        Slots that hold another expert afterwards, and their bytes.
    moved_slots, moved_bytes : int
        Those of them whose expert came from another GPU.
    """

    layers: tuple[int, ...]
    status: str
    seconds: float | None
    changed_slots: int
    changed_bytes: int
    moved_slots: int
    moved_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "layers": list(self.layers)}

    @classmethod
    def from_json(cls, message: object, where: str) -> ChunkReport:
        fields = Fields(message, where)
        return cls(
            layers=fields.integers("layers"),
            status=fields.text("status", allowed=("applied", "planned", "failed", "skipped")),
            seconds=fields.optional("seconds", fields.number),
            changed_slots=fields.integer("changed_slots"),
            changed_bytes=fields.integer("changed_bytes"),
            moved_slots=fields.integer("moved_slots"),
            moved_bytes=fields.integer("moved_bytes"),
        )


@dataclass(frozen=True)
class PushAnswer:
    """Answer of ``PUT /moeplan/placement`` once the map was found valid.

    Attributes
    ----------
    engine : str
    simulated : bool
        As in :class:`PluginHealth`.
    status : {"applied", "dry_run", "partial"}
        ``partial``: a chunk failed; ``new_layers`` run the pushed map, ``old_layers`` the one before.
    previous_layout_hash, layout_hash : str
        Before, and at the time of the answer.
    generation : int
        As in :class:`Placement`.
    chunks : tuple of ChunkReport
        Layers that change; empty when the engine ran this map already.
    new_layers, old_layers : tuple of int
        Of the layers that change, those that run the pushed rows now, and those that still run the rows before.
    error : str
        What failed, empty unless partial.
    """

    engine: str
    simulated: bool
    status: str
    previous_layout_hash: str
    layout_hash: str
    generation: int
    chunks: tuple[ChunkReport, ...]
    new_layers: tuple[int, ...]
    old_layers: tuple[int, ...]
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        lists = {"new_layers": list(self.new_layers), "old_layers": list(self.old_layers)}
        return {**vars(self), **lists, "chunks": [chunk.to_json() for chunk in self.chunks]}

    @classmethod
    def from_json(cls, message: object) -> PushAnswer:
        fields = Fields(message, "push answer")
        chunks = fields.items("chunks")
        return cls(
            engine=fields.text("engine"),
            simulated=fields.flag("simulated"),
            status=fields.text("status", allowed=("applied", "dry_run", "partial")),
            previous_layout_hash=fields.text("previous_layout_hash"),
            layout_hash=fields.text("layout_hash"),
            generation=fields.integer("generation"),
            chunks=tuple(ChunkReport.from_json(chunk, f"push answer.chunks[{i}]") for i, chunk in enumerate(chunks)),
            new_layers=fields.integers("new_layers"),
            old_layers=fields.integers("old_layers"),
            error=fields.text("error"),
        )
