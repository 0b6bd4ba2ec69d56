"""Workers that are gone are told from those whose clock is another one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from api.jobs.absences import Absences

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_whoever_is_not_seen_anew_for_long_is_gone() -> None:
    watch = Absences(gone_after_s=30.0)
    assert watch.gone({"a": NOON, "b": NOON}, at_s=0.0) == []
    assert watch.gone({"a": NOON + timedelta(seconds=20), "b": NOON}, at_s=20.0) == []
    assert watch.gone({"a": NOON + timedelta(seconds=20), "b": NOON}, at_s=30.0) == ["b"]
    assert watch.gone({"a": NOON + timedelta(seconds=30), "b": NOON + timedelta(seconds=1)}, at_s=31.0) == []


def test_clocks_that_jump_make_nobody_gone_and_hide_nobody() -> None:
    watch = Absences(gone_after_s=30.0)
    years = timedelta(days=4000)
    watch.gone({"late": NOON - years, "early": NOON + years, "dead": NOON}, at_s=0.0)
    moved = timedelta(seconds=29)
    seen = {"late": NOON - years + moved, "early": NOON - years, "dead": NOON}
    assert watch.gone(seen, at_s=29.0) == []
    assert watch.gone(seen, at_s=31.0) == ["dead"]


def test_after_an_outage_all_get_their_time_again() -> None:
    watch = Absences(gone_after_s=30.0)
    watch.gone({"a": NOON}, at_s=0.0)
    watch.begin_anew()
    assert watch.gone({"a": NOON}, at_s=100.0) == []
    assert watch.gone({"a": NOON}, at_s=130.0) == ["a"]


def test_one_that_was_forgotten_is_not_told_of() -> None:
    watch = Absences(gone_after_s=30.0)
    watch.gone({"a": NOON}, at_s=0.0)
    assert watch.gone({}, at_s=60.0) == []
