"""Ticks: across changes of the clocks, and which of several missed ones is run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import BadSchedule
from api.rebalancing.gates import Gates
from api.rebalancing.hours import Hours, are_open, next_opening
from api.rebalancing.timing import MOST_COUNTED, Timing

START = datetime(2026, 3, 1, 0, 0, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def cron(expression: str, time_zone: str = "UTC") -> Timing:
    return Timing(expression, None, time_zone, starts_at=START)


def every(seconds: float) -> Timing:
    return Timing(None, seconds, "UTC", starts_at=START)


def test_an_interval_has_fixed_ticks_whoever_asks_when() -> None:
    timing = every(90)
    assert timing.next_after(START) == START + timedelta(seconds=90)
    assert timing.next_after(START + timedelta(seconds=89.9)) == START + timedelta(seconds=90)
    assert timing.next_after(START + timedelta(seconds=90)) == START + timedelta(seconds=180)
    assert timing.next_after(START - timedelta(days=3)) == START + timedelta(seconds=90)


def test_cron_is_read_in_its_time_zone() -> None:
    assert cron("30 4 * * *", "Europe/Berlin").next_after(START) == datetime(2026, 3, 1, 3, 30, tzinfo=UTC)
    assert cron("30 4 * * *", "Asia/Tokyo").next_after(START) == datetime(2026, 3, 1, 19, 30, tzinfo=UTC)


def test_clocks_that_are_put_forward_leave_no_tick_out() -> None:
    """On 29 March 2026 there is no 02:30 in Berlin."""
    timing = cron("30 2 * * *", "Europe/Berlin")
    first = timing.next_after(datetime(2026, 3, 28, 12, tzinfo=BERLIN))
    assert first == datetime(2026, 3, 29, 3, 0, tzinfo=BERLIN)
    assert timing.next_after(first) == datetime(2026, 3, 30, 2, 30, tzinfo=BERLIN)


def test_clocks_that_are_put_back_repeat_the_hour() -> None:
    timing = cron("30 2 * * *", "Europe/Berlin")
    first = timing.next_after(datetime(2026, 10, 24, 12, tzinfo=BERLIN))
    assert (first, timing.next_after(first)) == (
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
    )


@pytest.mark.parametrize("timing", [every(3600), cron("0 * * * *")], ids=["interval", "cron"])
def test_of_missed_ticks_the_last_is_run(timing: Timing) -> None:
    first = timing.next_after(START)
    assert timing.last_until(first, since=first) == (first, 0)
    assert timing.last_until(first + timedelta(minutes=59), since=first) == (first, 0)
    assert timing.last_until(first + timedelta(hours=1), since=first) == (first + timedelta(hours=1), 1)
    assert timing.last_until(first + timedelta(hours=5, minutes=3), since=first) == (first + timedelta(hours=5), 5)


def test_long_outages_are_counted_up_to_a_limit_and_the_last_tick_is_right() -> None:
    timing = cron("* * * * *")
    first = timing.next_after(START)
    until = first + timedelta(days=30, seconds=10)
    assert timing.last_until(until, since=first) == (first + timedelta(days=30), MOST_COUNTED)


TIMINGS = st.one_of(
    st.floats(1, 1e6).map(every),
    st.sampled_from(
        [cron("*/7 * * * *", "Europe/Berlin"), cron("0 3 * * mon#1", "America/New_York"), cron("5 4 1 * *")]
    ),
)


@given(TIMINGS, st.timedeltas(timedelta(0), timedelta(days=900)))
def test_the_next_tick_is_later_and_nothing_lies_between(timing: Timing, after: timedelta) -> None:
    at = START + after
    following = timing.next_after(at)
    assert following > at
    assert timing.next_after(following - timedelta(microseconds=1)) == following
    last, _ = timing.last_until(following, since=timing.next_after(START))
    assert last == following


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("61 * * * *", "cannot be used"),
        ("* * * *", "does not have five fields"),
        ("* * * * * *", "does not have five fields"),
        ("@hourly", "does not have five fields"),
        ("r * * * *", "does not have five fields"),
        ("H(0-5) * * * *", "does not have five fields"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 * * xyz", "cannot be used"),
        ("-- -- -- -- --", "cannot be used"),
    ],
)
def test_bad_expressions_are_one_sentence(expression: str, said: str) -> None:
    with pytest.raises(BadSchedule, match=said):
        cron(expression)


@pytest.mark.parametrize("seconds", [0.5, 0.0, -1.0, 1e9, float("nan"), float("inf")])
def test_intervals_have_limits(seconds: float) -> None:
    with pytest.raises(BadSchedule, match="interval_s"):
        every(seconds)


def test_exactly_one_of_both_and_a_zone_that_exists() -> None:
    with pytest.raises(BadSchedule, match="not both"):
        Timing("* * * * *", 5.0, "UTC", starts_at=START)
    with pytest.raises(BadSchedule, match="not both"):
        Timing(None, None, "UTC", starts_at=START)
    for name in ("Europe/Atlantis", "", "../etc/passwd", "/etc/passwd", "A" * 300):
        with pytest.raises(BadSchedule, match="no time zone"):
            cron("* * * * *", name)


WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def berlin(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=BERLIN)  # the 30th is a Monday


@pytest.mark.parametrize(
    ("hours", "at", "open_"),
    [
        (Hours(("mon",), "09:00", "17:00"), berlin(30, 9), True),
        (Hours(("mon",), "09:00", "17:00"), berlin(30, 8, 59), False),
        (Hours(("mon",), "09:00", "17:00"), berlin(30, 17), False),
        (Hours(("tue",), "09:00", "17:00"), berlin(30, 9), False),
        (Hours(("mon",), "22:00", "06:00"), berlin(30, 23), True),
        (Hours(("sun",), "22:00", "06:00"), berlin(30, 5, 59), True),
        (Hours(("sun",), "22:00", "06:00"), berlin(30, 6), False),
        (Hours(("mon",), "22:00", "06:00"), berlin(30, 5), False),
        (Hours(WEEK, "00:00", "24:00"), berlin(30, 0), True),
        (Hours(WEEK, "00:00", "24:00"), berlin(30, 23, 59), True),
    ],
)
def test_hours_by_day_and_over_midnight(hours: Hours, at: datetime, open_: bool) -> None:
    assert are_open((hours,), at, time_zone="Europe/Berlin") is open_


def test_hours_are_of_their_own_zone() -> None:
    night = Hours(("mon",), "22:00", "23:00")
    assert are_open((night,), datetime(2026, 11, 30, 21, 30, tzinfo=UTC), time_zone="Europe/Berlin")
    assert not are_open((night,), datetime(2026, 11, 30, 21, 30, tzinfo=UTC), time_zone="UTC")


@given(
    st.lists(st.sampled_from(WEEK), min_size=1, unique=True),
    st.tuples(st.integers(0, 23), st.integers(0, 23)).filter(lambda pair: pair[0] != pair[1]),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
)
def test_at_their_next_opening_they_are_open(days: list[str], clock: tuple[int, int], at: datetime) -> None:
    hours = Hours(tuple(days), f"{clock[0]:02}:00", f"{clock[1]:02}:00")
    opening = next_opening((hours,), at, time_zone="America/New_York")
    assert opening is not None
    assert at < opening <= at + timedelta(days=8)
    local = opening.astimezone(ZoneInfo("America/New_York"))
    skipped = local.hour != clock[0]  # the hour in which clocks are put forward does not exist
    assert skipped or are_open((hours,), opening, time_zone="America/New_York")


@pytest.mark.parametrize(
    "broken", [((), "09:00", "17:00"), (("mo",), "09:00", "17:00"), (("mon",), "9:00", "17:00"),
               (("mon",), "09:00", "09:00"), (("mon",), "24:00", "06:00"), (("mon",), "09:00", "25:00")]
)  # fmt: skip
def test_bad_hours_are_refused(broken: tuple[tuple[str, ...], str, str]) -> None:
    with pytest.raises(BadSchedule, match="maintenance_hours"):
        Hours(*broken)


@pytest.mark.parametrize(
    "given_", [{"least_gain": -0.1}, {"least_drift": 1.1}, {"least_tokens": -1}, {"cool_down_s": float("nan")},
               {"most_moved_slots": 1, "most_moved_bytes": 1}, {"time_zone": "Nowhere"}]
)  # fmt: skip
def test_bad_gates_are_refused(given_: dict[str, object]) -> None:
    with pytest.raises(BadSchedule):
        Gates(**given_)  # type: ignore[arg-type]


def test_gates_survive_being_stored_also_by_another_version() -> None:
    gates = Gates(least_gain=0.3, most_moved_slots=7, maintenance_hours=(Hours(("mon",), "22:00", "06:00"),))
    assert Gates.from_json(gates.to_json()) == gates
    assert Gates.from_json({"least_gain": 0.3, "of_a_newer_moeplan": 1}) == Gates(least_gain=0.3)
