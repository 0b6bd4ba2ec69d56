"""How a push ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from placement.layout import Layout
from placement.notice import Notice
from profiler.engine.contract_push import ChunkReport, PushAnswer
from profiler.engine.map_rules import slot_changes

PushStatus = Literal["applied", "unchanged", "dry_run"]


@dataclass(frozen=True)
class PushResult:
    """How a push ended; everything else is an error.

    Attributes
    ----------
    status : {"applied", "unchanged", "dry_run"}
        ``applied``: read back on every rank. ``unchanged``: the engine ran this layout already.
    engine : str
        ``sglang`` or ``moeplan-replay``.
    simulated : bool
        True when seconds and bytes are no measurements.
    layout, previous : Layout
        What was pushed, and what the engine ran before.
    expert_bytes : int
        Bytes of one expert of one layer.
    answer : PushAnswer or None
        Chunks with seconds and bytes; None when unchanged, or when the engine's answer was lost and the layout was
        then found applied.
    weights_checked : bool
        Whether every slot's weights were compared with its expert's.
    notices : tuple of Notice
    """

    status: PushStatus
    engine: str
    simulated: bool
    layout: Layout
    previous: Layout
    expert_bytes: int
    answer: PushAnswer | None
    weights_checked: bool
    notices: tuple[Notice, ...]

    @property
    def changed_slots(self) -> int:
        """Slots that hold another expert than before."""
        return self._changes()[0]

    @property
    def moved_slots(self) -> int:
        """Those of them whose expert came from another GPU."""
        return self._changes()[1]

    @property
    def move_seconds(self) -> float | None:
        """Time of all chunks without pauses; None unless the engine has said so."""
        if self.status != "applied" or self.answer is None:
            return None
        return sum(chunk.seconds or 0.0 for chunk in self.answer.chunks)

    def sentence(self) -> str:
        """Say in one sentence what has happened."""
        new, old = self.layout.hash[:12], self.previous.hash[:12]
        if self.status == "unchanged":
            return f"The engine runs layout {new} already; nothing was pushed."
        slots = f"{self.changed_slots} slots, {self.moved_slots} of them from another GPU"
        if self.status == "dry_run":
            return f"Layout {new} would change {slots}; nothing was pushed."
        figures = "simulated" if self.simulated else "measured"
        took = "" if self.move_seconds is None else f" in {self.move_seconds:.3f} s ({figures})"
        read_back = "map and weights were" if self.weights_checked else "the map (the engine has no checksums) was"
        return f"Layout {new} runs in place of {old}: it changed {slots}{took}; {read_back} read back on every rank."

    def to_dict(self) -> dict[str, Any]:
        """Return the result for ``--json``, without the maps."""
        return {
            "status": self.status,
            "engine": self.engine,
            "simulated": self.simulated,
            "layout_hash": self.layout.hash,
            "previous_layout_hash": self.previous.hash,
            "changed_slots": self.changed_slots,
            "moved_slots": self.moved_slots,
            "moved_bytes": self.moved_slots * self.expert_bytes,
            "move_seconds": self.move_seconds,
            "chunks": [chunk.to_json() for chunk in self._chunks()],
            "weights_checked": self.weights_checked,
        }

    def _chunks(self) -> tuple[ChunkReport, ...]:
        return () if self.answer is None else self.answer.chunks

    def _changes(self) -> tuple[int, int]:
        old, new = self.previous.slot_to_expert_LP, self.layout.slot_to_expert_LP
        changes = slot_changes(old, new, layers=range(self.layout.layers), gpus=self.layout.gpus)
        return changes.changed_slots, changes.moved_slots
