"""Every gate open, closed and at its edge; then all of them together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.rebalancing.decide import GATES, decide
from api.rebalancing.evidence import Drift, Evidence, Recording, Timeliness
from api.rebalancing.gates import Gates
from api.rebalancing.hours import Hours
from api.states import Outcome
from placement.problem import LocalScope, Objective
from tests.api.rebalancing.found import NOON, PLANNED, RUNNING, balanced, compared, evidence
from tests.case_files import case, case_json

NIGHT = Hours(("mon",), "22:00", "06:00")
USUAL = Gates()


def closed_by(gates: Gates, found: Evidence) -> str | None:
    closed = decide(gates, found).closed
    return None if closed is None else closed.code


def test_with_all_gates_open_a_cycle_goes_on() -> None:
    verdict = decide(USUAL, evidence())
    assert verdict.goes_on
    assert verdict.sentence == ""
    assert len(verdict.checked) == len(GATES)


def test_a_gate_whose_evidence_is_not_there_is_not_looked_at() -> None:
    only_time = decide(USUAL, Evidence(timeliness=Timeliness(at=NOON, last_change_at=None)))
    assert [each.gate for each in only_time.checked] == ["cool_down", "maintenance_hours"]
    assert decide(USUAL, Evidence()).checked == ()


CASES: list[tuple[str, Gates, Evidence, str | None]] = [
    # gate, limits, evidence, code of the decision or None where it is open
    ("recording whole", USUAL, evidence(recording=Recording(tokens=10**9, windows=8)), None),
    ("windows lost", USUAL, evidence(recording=Recording(tokens=10**9, windows=8, warnings=("WINDOWS_LOST",))),
     "RECORDING_PARTIAL"),
    ("layout changed meanwhile", USUAL,
     evidence(recording=Recording(tokens=10**9, windows=8, warnings=("LAYOUT_CHANGED",))), "RECORDING_PARTIAL"),
    ("a warning that says nothing of it", USUAL,
     evidence(recording=Recording(tokens=10**9, windows=8, warnings=("SHARED_EXPERT_IDS",))), None),
    ("two windows", USUAL, evidence(recording=Recording(tokens=10**9, windows=2)), None),
    ("one window", USUAL, evidence(recording=Recording(tokens=10**9, windows=1)), "RECORDING_PARTIAL"),
    ("enough tokens", Gates(least_tokens=500), evidence(recording=Recording(tokens=501, windows=2)), None),
    ("just enough tokens", Gates(least_tokens=500), evidence(recording=Recording(tokens=500, windows=2)), None),
    ("too few tokens", Gates(least_tokens=500), evidence(recording=Recording(tokens=499, windows=2)), "TOO_FEW_TOKENS"),
    ("drifted", Gates(least_drift=0.2), evidence(drift=Drift(mean=0.3)), None),
    ("just drifted", Gates(least_drift=0.2), evidence(drift=Drift(mean=0.2)), None),
    ("not drifted", Gates(least_drift=0.2), evidence(drift=Drift(mean=0.19)), "DRIFT_BELOW_THRESHOLD"),
    ("drift not known", Gates(least_drift=0.2), evidence(drift=Drift(mean=None)), None),
    ("fresh", Gates(longest_recording_age_s=60), evidence(compared=compared(recorded_at=NOON)), None),
    ("just fresh", Gates(longest_recording_age_s=60),
     evidence(compared=compared(recorded_at=NOON - timedelta(seconds=60))), None),
    ("stale", Gates(longest_recording_age_s=60),
     evidence(compared=compared(recorded_at=NOON - timedelta(seconds=61))), "RECORDING_STALE"),
    ("engine as it was", USUAL, evidence(compared=compared(engine_changed="")), None),
    ("engine changed", USUAL, evidence(compared=compared(engine_changed="its weights were updated")), "ENGINE_CHANGED"),
    ("one slot", USUAL, evidence(compared=compared(moved_slots=1)), None),
    ("no slot", USUAL, evidence(compared=compared(moved_slots=0)), "NOTHING_TO_MOVE"),
    ("gain", Gates(least_gain=0.2), evidence(), None),
    ("just the gain", Gates(least_gain=0.22), evidence(), None),
    ("too little gain", Gates(least_gain=0.23), evidence(), "GAIN_BELOW_THRESHOLD"),
    ("no gain at all", Gates(least_gain=0.0), evidence(compared=compared(planned=RUNNING)), "GAIN_BELOW_THRESHOLD"),
    ("worse", Gates(least_gain=0.0), evidence(compared=compared(running=PLANNED, planned=RUNNING)),
     "GAIN_BELOW_THRESHOLD"),
    ("relative gain", Gates(least_relative_gain=0.5), evidence(), None),
    ("just the relative gain", Gates(least_relative_gain=0.55), evidence(), None),
    ("too little relative gain", Gates(least_relative_gain=0.56), evidence(), "GAIN_BELOW_THRESHOLD"),
    ("more even than before", Gates(most_imbalance_rise=0.0), evidence(), None),
    ("as uneven as allowed", Gates(most_imbalance_rise=0.1),
     evidence(compared=compared(planned=replace(PLANNED, imbalance=1.32))), None),
    ("more uneven", Gates(most_imbalance_rise=0.1),
     evidence(compared=compared(planned=replace(PLANNED, imbalance=1.33))), "IMBALANCE_RISES"),
    ("uneven within the plan's own cap", Gates(most_imbalance_rise=0.0),
     evidence(compared=compared(planned=replace(PLANNED, imbalance=1.4), max_imbalance=1.4)), None),
    ("moves within budget", Gates(most_moved_slots=101), evidence(), None),
    ("moves at the budget", Gates(most_moved_slots=100), evidence(), None),
    ("moves above budget", Gates(most_moved_slots=99), evidence(), "MOVES_ABOVE_BUDGET"),
    ("bytes at the budget", Gates(most_moved_bytes=100 * 2**20), evidence(), None),
    ("bytes above budget", Gates(most_moved_bytes=100 * 2**20 - 1), evidence(), "MOVES_ABOVE_BUDGET"),
    ("bytes not known", Gates(most_moved_bytes=2**60), evidence(compared=compared(moved_bytes=None)),
     "MOVES_ABOVE_BUDGET"),
    ("never changed", Gates(cool_down_s=600), evidence(timeliness=Timeliness(at=NOON, last_change_at=None)), None),
    ("cooled down", Gates(cool_down_s=600),
     evidence(timeliness=Timeliness(at=NOON, last_change_at=NOON - timedelta(seconds=600))), None),
    ("cooling down", Gates(cool_down_s=600),
     evidence(timeliness=Timeliness(at=NOON, last_change_at=NOON - timedelta(seconds=599))), "COOLING_DOWN"),
    ("cooled down after one that was taken back", Gates(cool_down_s=600),
     evidence(timeliness=Timeliness(at=NOON, last_change_at=NOON - timedelta(seconds=1200), taken_back_in_row=1)),
     None),
    ("cooling down after two that were taken back", Gates(cool_down_s=600),
     evidence(timeliness=Timeliness(at=NOON, last_change_at=NOON - timedelta(seconds=1200), taken_back_in_row=2)),
     "COOLING_DOWN"),
    ("cooling down no longer than that", Gates(cool_down_s=600),
     evidence(timeliness=Timeliness(at=NOON, last_change_at=NOON - timedelta(seconds=64 * 600), taken_back_in_row=99)),
     None),
    ("a change that lies ahead by the clock", Gates(cool_down_s=600),
     evidence(timeliness=Timeliness(at=NOON, last_change_at=NOON + timedelta(days=9))), "COOLING_DOWN"),
    ("any hour", Gates(), evidence(), None),
    ("outside of the hours", Gates(maintenance_hours=(NIGHT,)), evidence(), "OUTSIDE_MAINTENANCE_HOURS"),
    ("inside", Gates(maintenance_hours=(NIGHT,)),
     evidence(timeliness=Timeliness(at=NOON.replace(hour=22), last_change_at=None),
              compared=compared(recorded_at=NOON.replace(hour=22))), None),
]  # fmt: skip


@pytest.mark.parametrize(("gates", "found", "code"), [pytest.param(*each[1:], id=each[0]) for each in CASES])
def test_a_gate(gates: Gates, found: Evidence, code: str | None) -> None:
    assert closed_by(gates, found) == code


def test_the_case_of_a_gain_that_is_too_small() -> None:
    """L17: balancedness .936 -> .992 is no reason to stop the world where a gain of .1 is asked for."""
    known, job = case("L17"), case_json("L17", "job.json")
    found = evidence(
        compared=balanced(1 / job["current_balancedness"], 1 / job["predicted_balancedness"]),
        timeliness=Timeliness(at=NOON, last_change_at=NOON - timedelta(seconds=job["last_push_age_s"])),
    )
    verdict = decide(Gates(least_gain=job["min_gain"], cool_down_s=job["cooldown_s"]), found)
    assert verdict.closed is not None
    assert verdict.closed.code == known["expect"]["error_code"]
    assert verdict.closed.outcome is Outcome.NOTHING
    assert "below the least gain of 0.100 of imbalance" in verdict.sentence
    assert [each.code for each in verdict.checked if not each.is_open] == ["GAIN_BELOW_THRESHOLD", "COOLING_DOWN"]
    assert closed_by(Gates(least_gain=0.05, cool_down_s=job["cooldown_s"]), found) == "COOLING_DOWN"
    assert closed_by(Gates(least_gain=0.05, cool_down_s=60.0), found) is None


def test_the_figure_that_counts_is_the_objectives() -> None:
    assert compared().gain == pytest.approx(0.22)
    assert compared(local_scope=LocalScope.NODE).gain == pytest.approx(0.20)
    assert balanced(1.3, 1.1).gain == pytest.approx(0.2)
    homeless = compared(running=replace(RUNNING, local_gpu=None), planned=replace(PLANNED, local_gpu=None))
    assert homeless.metric == "worst_window_imbalance"
    assert homeless.gain == pytest.approx(0.15)


def test_sentences_say_what_was_found_and_what_is_asked_for() -> None:
    told = decide(Gates(least_gain=0.3), evidence()).sentence
    assert told == (
        "The layout stays: on the held-out windows 62.0% of routed tokens stay on their home GPU with the plan, 40.0% "
        "with the running layout; the gain of 22 points is below the least gain of 30 points."
    )
    told = decide(Gates(maintenance_hours=(NIGHT,), time_zone="Europe/Berlin"), evidence()).sentence
    assert told == ("The layout stays: it is outside of the maintenance hours; they begin at 2026-11-30 21:00 UTC.")


LIMITS = st.builds(
    Gates,
    least_tokens=st.integers(0, 1000),
    least_drift=st.floats(0, 1),
    longest_recording_age_s=st.floats(1, 1e5),
    least_gain=st.floats(0, 0.5),
    least_relative_gain=st.floats(0, 1),
    most_imbalance_rise=st.floats(0, 1),
    most_moved_slots=st.none() | st.integers(0, 200),
    cool_down_s=st.floats(0, 1e5),
    maintenance_hours=st.sampled_from([(), (NIGHT,), (Hours(("tue", "mon"), "09:00", "17:00"),)]),
)
SHARES = st.floats(0, 1)
UNEVEN = st.floats(1, 3)


@st.composite
def anything(draw: Any) -> Evidence:
    figures = [
        replace(RUNNING, local_gpu=draw(SHARES), imbalance=draw(UNEVEN), worst_window_imbalance=draw(UNEVEN))
        for _ in range(2)
    ]
    at = NOON + timedelta(seconds=draw(st.integers(0, 7 * 86400)))
    return evidence(
        timeliness=Timeliness(at=at, last_change_at=draw(st.none() | st.datetimes(timezones=st.just(UTC)))),
        recording=Recording(
            tokens=draw(st.integers(0, 2000)),
            windows=draw(st.integers(0, 4)),
            warnings=draw(st.sampled_from([(), ("WINDOWS_LOST",), ("SHARED_EXPERT_IDS",)])),
        ),
        drift=Drift(mean=draw(st.none() | SHARES)),
        compared=compared(
            objective=draw(st.sampled_from([Objective.LOCALITY, Objective.BALANCE])),
            running=figures[0],
            planned=figures[1],
            moved_slots=draw(st.integers(0, 300)),
            recorded_at=at - timedelta(seconds=draw(st.integers(0, 10**5))),
            engine_changed=draw(st.sampled_from(["", "its weights were updated"])),
        ),
    )


@given(LIMITS, anything())
def test_nothing_goes_on_while_any_gate_is_closed_and_the_first_is_named(gates: Gates, found: Evidence) -> None:
    verdict = decide(gates, found)
    alone = [check for gate in GATES if (check := gate(gates, found)) is not None]
    closed = [each for each in alone if not each.is_open]
    assert len(alone) == len(GATES)
    assert verdict.goes_on == (not closed)
    if closed:
        assert verdict.closed == closed[0]
        assert closed[0].closed in verdict.sentence
        assert verdict.sentence.endswith(".")
        assert not verdict.sentence.endswith("..")


@given(LIMITS, anything())
def test_what_goes_on_is_better_whole_and_within_all_limits(gates: Gates, found: Evidence) -> None:
    """The same limits written down a second time, without the gates."""
    if not decide(gates, found).goes_on:
        return
    recording, cmp, when = found.recording, found.compared, found.timeliness
    assert recording is not None
    assert cmp is not None
    assert when is not None
    assert recording.tokens >= gates.least_tokens
    assert "WINDOWS_LOST" not in recording.warnings
    assert cmp.gain > 0
    assert cmp.gain >= gates.least_gain - 1e-9
    assert cmp.moved_slots > 0
    assert gates.most_moved_slots is None or cmp.moved_slots <= gates.most_moved_slots
    assert when.at - cmp.recorded_at <= timedelta(seconds=gates.longest_recording_age_s)
    assert not cmp.engine_changed
    assert when.last_change_at is None or when.at - when.last_change_at >= timedelta(seconds=gates.cool_down_s)


def test_evidence_survives_being_stored() -> None:
    for original in (compared(), compared(local_scope=LocalScope.NODE, engine_changed="x", moved_bytes=None)):
        assert type(original).from_json(original.to_json()) == original
    for moment in (None, datetime(2026, 1, 2, tzinfo=UTC)):
        timeliness = Timeliness(at=NOON, last_change_at=moment, taken_back_in_row=2)
        assert Timeliness.from_json(timeliness.to_json()) == timeliness
    recording = Recording(tokens=5, windows=2, warnings=("A",))
    assert Recording.from_json(recording.to_json()) == recording
