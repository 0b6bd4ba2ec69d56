"""When a schedule is due: by a cron expression in a time zone, or every so many seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter
from croniter.croniter import CroniterError

from api.errors import BadSchedule

SHORTEST_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 366 * 86400.0

FIELDS = re.compile(r"[0-9A-Za-z*,/#?-]+( [0-9A-Za-z*,/#?-]+){4}")
DRAWN_BY_LOT = re.compile(r"(^|[ ,])[rRhH]([ ,/]|$)")
"""Fields that croniter would fill at random, and differently each time."""

MOST_COUNTED = 1_000
"""Missed ticks of a cron expression are counted up to here."""


@dataclass(frozen=True)
class Timing:
    """The ticks of a schedule: a fixed set of moments, whoever asks and whenever.

    Attributes
    ----------
    cron : str or None
        Five fields: minute, hour, day of month, month, day of week; or else
    interval_s : float or None
        seconds from tick to tick, counted from ``starts_at``. Exactly one of the two is given.
    time_zone : str
        IANA name that ``cron`` is read in. Where clocks are put forward, a tick in the hour that is left out comes
        right after it; where they are put back, one in the hour that is repeated comes twice.
    starts_at : datetime
        There is no tick before or at it.

    Raises
    ------
    BadSchedule
    """

    cron: str | None
    interval_s: float | None
    time_zone: str
    starts_at: datetime

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.interval_s is None):
            raise BadSchedule("give either cron or interval_s, and not both.")
        zone(self.time_zone)
        if self.interval_s is not None and not SHORTEST_INTERVAL_S <= self.interval_s <= LONGEST_INTERVAL_S:
            raise BadSchedule(
                f"interval_s is {self.interval_s:g}; it is {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} seconds."
            )
        if self.cron is not None:
            _check_cron(self.cron)
        self.next_after(self.starts_at)

    def next_after(self, moment: datetime) -> datetime:
        """Return the first tick later than a moment, in UTC. Raises :class:`BadSchedule` where there is none."""
        after = max(moment, self.starts_at)
        if self.interval_s is not None:
            interval = timedelta(seconds=self.interval_s)
            return self.starts_at + ((after - self.starts_at) // interval + 1) * interval
        try:
            found: datetime = croniter(self.cron, after.astimezone(zone(self.time_zone))).get_next(datetime)
        except CroniterError:
            raise BadSchedule(f"the cron expression {self.cron!r} names a day that never comes.") from None
        return found.astimezone(UTC)

    def last_until(self, moment: datetime, *, since: datetime) -> tuple[datetime, int]:
        """Return the last tick up to a moment, and how many ticks lie before it from ``since`` on.

        Parameters
        ----------
        moment
        since
            A tick, not later than ``moment``.
        """
        if self.interval_s is not None:
            interval = timedelta(seconds=self.interval_s)
            more = (moment - since) // interval
            return since + more * interval, more
        ticks = croniter(self.cron, (moment + timedelta(microseconds=1)).astimezone(zone(self.time_zone)))
        last = max(since, ticks.get_prev(datetime).astimezone(UTC))
        before, missed = since, 0
        while before < last and missed < MOST_COUNTED:
            before, missed = self.next_after(before), missed + 1
        return last, missed


def zone(name: str) -> ZoneInfo:
    """Return a time zone. Raises :class:`BadSchedule`."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadSchedule(
            f"there is no time zone {name[:60]!r}; names are those of IANA, like Europe/Berlin."
        ) from None


def _check_cron(cron: str) -> None:
    if not FIELDS.fullmatch(cron) or DRAWN_BY_LOT.search(cron):
        raise BadSchedule(
            f"the cron expression {cron[:60]!r} does not have five fields (minute, hour, day of month, month, day of "
            "week) of numbers, names, * , - / and #; like '30 4 * * mon-fri'."
        )
    try:
        croniter(cron)
    except (CroniterError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        said = str(error).rstrip(".") or "one of its fields cannot be read"
        raise BadSchedule(f"the cron expression {cron!r} cannot be used: {said}.") from None
