"""Hours in which an engine may be changed, by the days of the week and in a time zone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

from api.errors import BadSchedule
from api.rebalancing.timing import zone

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]|24:00")
DAY_MINUTES = 24 * 60


@dataclass(frozen=True)
class Hours:
    """From one time of day to another, on some days; until the next day where it ends before it begins.

    Attributes
    ----------
    days : tuple of str
        Days on which it begins, of :data:`DAYS`.
    start, end : str
        ``HH:MM``; ``24:00`` is the end of the day. The start is inside, the end is not.

    Raises
    ------
    BadSchedule
    """

    days: tuple[str, ...]
    start: str
    end: str

    def __post_init__(self) -> None:
        unknown = [day for day in self.days if day not in DAYS]
        if unknown or not self.days:
            found = f"names {unknown[0]!r}" if unknown else "names no day"
            raise BadSchedule(f"maintenance_hours {found}; days are {', '.join(DAYS)}.")
        for name, clock in (("start", self.start), ("end", self.end)):
            if not CLOCK.fullmatch(clock):
                raise BadSchedule(f"maintenance_hours.{name} is {clock!r}; it is a time like 22:30.")
        if self.start == "24:00" or self.start == self.end:
            raise BadSchedule(
                f"maintenance_hours run from {self.start} to {self.end}; the whole day is from 00:00 to 24:00."
            )

    @property
    def spans_midnight(self) -> bool:
        return _minutes(self.end) <= _minutes(self.start)

    def include(self, local: datetime) -> bool:
        """Whether they include a moment, given in the local time of their zone."""
        minute, today = local.hour * 60 + local.minute, DAYS[local.weekday()]
        yesterday = DAYS[(local.weekday() - 1) % 7]
        begin, end = _minutes(self.start), _minutes(self.end)
        if not self.spans_midnight:
            return today in self.days and begin <= minute < end
        return (today in self.days and minute >= begin) or (yesterday in self.days and minute < end)

    def to_json(self) -> dict[str, Any]:
        return {"days": list(self.days), "start": self.start, "end": self.end}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Hours:
        return cls(tuple(value["days"]), value["start"], value["end"])


def are_open(hours: Sequence[Hours], at: datetime, *, time_zone: str) -> bool:
    """Whether changes are allowed at a moment; always, where no hours are given."""
    local = at.astimezone(zone(time_zone))
    return not hours or any(each.include(local) for each in hours)


def next_opening(hours: Sequence[Hours], at: datetime, *, time_zone: str) -> datetime | None:
    """Return when hours next begin after a moment, in UTC; None where no hours are given."""
    here = zone(time_zone)
    today = at.astimezone(here).date()
    openings = []
    for each in hours:
        for offset in range(9):
            day = today + timedelta(days=offset)
            if DAYS[day.weekday()] in each.days:
                minutes = _minutes(each.start)
                begins = datetime.combine(day, time(minutes // 60, minutes % 60), tzinfo=here).astimezone(UTC)
                if begins > at:
                    openings.append(begins)
    return min(openings, default=None)


def _minutes(clock: str) -> int:
    hours, _, minutes = clock.partition(":")
    return int(hours) * 60 + int(minutes)
