"""The limits of a schedule: what must hold before a plan is proposed or pushed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from api.errors import BadSchedule
from api.rebalancing.hours import Hours
from api.rebalancing.timing import zone

DAY_S = 86400.0


class Mode(StrEnum):
    """What is done with a plan that passes all gates."""

    PROPOSE = "propose"
    APPLY = "apply"


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Limits of a schedule; see the table in the README of ``api`` for what each closes and says.

    Attributes
    ----------
    least_tokens : int
        Routed tokens of a recording (a token with top-k = 8 counts 8 in every MoE layer).
    least_drift : float
        Jensen-Shannon distance, 0..1, between the demand now and the one the running plan was made from, the mean over
        MoE layers. Nearer to it than this nothing is planned; 0 always plans.
    longest_recording_age_s : float
        A plan is good for so long after the end of its recording.
    least_gain, least_relative_gain : float
        What a plan must be better by on the held-out windows, in the figure of its objective: as a difference, and as a
        part of the running layout's figure. Both must hold.
    most_imbalance_rise : float
        How much more uneven than the running layout a plan may be on the held-out windows, as a part of its imbalance;
        below the plan's own cap it may be as uneven as the cap.
    most_moved_slots, most_moved_bytes : int or None
        Budget of moves; the plan is made within it.
    cool_down_s : float
        Since the engine's layout was last changed by a rollout.
    maintenance_hours : tuple of Hours
        When the engine may be changed; always, where empty.
    time_zone : str
        Of the maintenance hours.

    Raises
    ------
    BadSchedule
    """

    least_tokens: int = 100_000
    least_drift: float = 0.0
    longest_recording_age_s: float = 3600.0
    least_gain: float = 0.01
    least_relative_gain: float = 0.0
    most_imbalance_rise: float = 0.1
    most_moved_slots: int | None = None
    most_moved_bytes: int | None = None
    cool_down_s: float = 600.0
    maintenance_hours: tuple[Hours, ...] = ()
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        zone(self.time_zone)
        _require_between(self, "least_drift", 0.0, 1.0)
        for name in ("least_gain", "least_relative_gain", "most_imbalance_rise"):
            _require_between(self, name, 0.0, 1e6)
        _require_between(self, "cool_down_s", 0.0, 366 * DAY_S)
        _require_between(self, "longest_recording_age_s", 1.0, 366 * DAY_S)
        for name in ("least_tokens", "most_moved_slots", "most_moved_bytes"):
            most = getattr(self, name)
            if most is not None and not 0 <= most <= 2**62:
                raise BadSchedule(f"gates.{name} is {most}; it is a number from 0 to 2^62.")
        if self.most_moved_slots is not None and self.most_moved_bytes is not None:
            raise BadSchedule("gates.most_moved_slots and gates.most_moved_bytes exclude each other; give one.")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "maintenance_hours": [each.to_json() for each in self.maintenance_hours]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote; what an older moeplan did not know takes its usual value."""
        known = {each.name for each in fields(cls)}
        given = {name: found for name, found in value.items() if name in known}
        hours = tuple(Hours.from_json(each) for each in given.pop("maintenance_hours", ()))
        return cls(**given, maintenance_hours=hours)


def _require_between(gates: Gates, name: str, least: float, most: float) -> None:
    value = getattr(gates, name)
    if not least <= value <= most or math.isnan(value):
        raise BadSchedule(f"gates.{name} is {value:g}; it is a number from {least:g} to {most:g}.")
