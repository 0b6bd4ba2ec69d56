"""Which workers are gone, told without any clock of theirs: whoever was not seen anew for a while of our own time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime


class Absences:
    """Watches when workers were last seen. Clocks that jump, or differ between hosts, change nothing.

    Parameters
    ----------
    gone_after_s : float
        Of this process's monotonic clock.
    """

    def __init__(self, *, gone_after_s: float) -> None:
        self._gone_after_s = gone_after_s
        self._since: dict[str, tuple[datetime, float]] = {}

    def gone(self, seen_at: Mapping[str, datetime], *, at_s: float) -> list[str]:
        """Return the workers whose moment has not changed for so long.

        Parameters
        ----------
        seen_at
            When each was last seen, by whatever clock.
        at_s
            The time, by the monotonic clock.
        """
        kept = {}
        for worker_id, moment in seen_at.items():
            before = self._since.get(worker_id)
            kept[worker_id] = before if before is not None and before[0] == moment else (moment, at_s)
        self._since = kept
        return sorted(name for name, (_, since_s) in kept.items() if at_s - since_s >= self._gone_after_s)

    def begin_anew(self) -> None:
        """Forget what was watched: nobody could write down that he is alive, so that all look gone and are not."""
        self._since = {}
