"""The replay engine's own record of pushes: who says that one was done twice can be shown that it was not."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from profiler.engine.map_rules import layout_hash

if TYPE_CHECKING:
    from profiler.replay.pushing import PushPlan

KEPT_PUSHES = 10_000


@dataclass
class LoggedPush:
    """One push that was begun.

    Attributes
    ----------
    number : int
        From 1, in the order they were begun.
    boot_id : str
        Of the engine when it began.
    previous_layout_hash, pushed_layout_hash : str
        What ran before, and what was to run.
    layout_hashes : list of str
        What ran after each applied chunk; empty where the push changed nothing.
    status : str
        ``under way``, ``applied``, ``partial`` or ``cut off``.
    """

    number: int
    boot_id: str
    previous_layout_hash: str
    pushed_layout_hash: str
    layout_hashes: list[str] = field(default_factory=list)
    status: str = "under way"


class PushLog:
    """The last :data:`KEPT_PUSHES` pushes; dry runs are none."""

    def __init__(self) -> None:
        self.pushes = 0
        self._kept: deque[LoggedPush] = deque(maxlen=KEPT_PUSHES)

    def begin(self, plan: PushPlan, *, boot_id: str) -> None:
        self.pushes += 1
        self._kept.append(LoggedPush(self.pushes, boot_id, plan.previous_hash, layout_hash(plan.request.map_LP)))

    def applied(self, hash_after: str) -> None:
        """Write down that a chunk of the push under way was applied."""
        self._kept[-1].layout_hashes.append(hash_after)

    def end(self, status: str) -> None:
        self._kept[-1].status = status

    def to_json(self) -> list[dict[str, Any]]:
        return [{**vars(push), "layout_hashes": list(push.layout_hashes)} for push in self._kept]
