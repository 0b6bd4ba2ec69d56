"""Times and names as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from api.report.numbers import ABSENT

STEPS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"))


def ago(then: datetime | None, *, at: datetime | None = None) -> str:
    """Return how long ago something was, as ``4 minutes ago``; ``in 4 minutes`` for what is to come."""
    if then is None:
        return ABSENT
    apart_s = ((at or datetime.now(UTC)) - then).total_seconds()
    if abs(apart_s) < 60:
        return "just now" if apart_s >= 0 else "in less than a minute"
    length_s, unit = next(step for step in STEPS if abs(apart_s) >= step[0])
    whole = int(abs(apart_s) // length_s)
    told = f"{whole} {unit}{'' if whole == 1 else 's'}"
    return f"{told} ago" if apart_s > 0 else f"in {told}"


def moment(then: datetime | None) -> str:
    """Return a time of day in UTC, as ``2026-11-30 02:41 UTC``."""
    return ABSENT if then is None else then.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def seconds(value: float | None) -> str:
    """Return a duration as ``0.41 s``, ``38 s`` or ``12 min``."""
    if value is None:
        return ABSENT
    if value >= 600:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


def long_time(value: float | None) -> str:
    """Return a duration in its largest unit that leaves no more than a half: ``1 day``, ``1.5 hours``, ``90 s``."""
    if value is None or value < 120:
        return seconds(value)
    for length_s, unit in STEPS:
        told = value / length_s
        if told >= 1 and (2 * told).is_integer():
            return f"{told:g} {unit}{'' if told == 1 else 's'}"
    return f"{value / 60:g} minutes" if (value / 60).is_integer() else f"{value:g} s"


def plain(name: object) -> str:
    """Return a name of the code as words: ``target_missed`` as ``target missed``."""
    return str(name).replace("_", " ")
