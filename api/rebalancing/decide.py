"""From evidence to a verdict: gates in a fixed order, and a sentence that names the first one that is closed.

::

    recording of poor quality ------+
    too few tokens                  |
    demand has hardly drifted       |
    recording too old               |
    engine changed meanwhile        +--> the layout stays, the sentence says why
    nothing to move, too little gain|
    less even than before           |
    too many moves                  |
    cooling down                    |
    outside of maintenance hours ---+
    all open --------------------------> propose, or apply

A gate is looked at as soon as what it needs is known, so a cycle that may not end in a change stops before it costs the
engine anything; of several closed ones the first in the order is named, and the numbers of all are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.rebalancing.evidence import LEAST_WINDOWS, PARTIAL, Compared, Drift, Evidence, Recording, Timeliness
from api.rebalancing.gates import Gates
from api.rebalancing.hours import are_open, next_opening
from api.rebalancing.wording import bytes_of, clock, duration, figure, gain, least_gain
from api.states import Outcome
from placement.problem import Objective

TOLERANCE = 1e-9
"""Figures that differ by less are equal."""

MOST_DOUBLINGS = 6
"""The cool-down grows no further than to 64 times itself."""


@dataclass(frozen=True)
class Checked:
    """One gate as it was found.

    Attributes
    ----------
    gate, code : str
        Its name, and the code of a decision that it makes.
    value, limit : float, str or None
        What was found and what is asked for.
    closed : str
        Why it is closed, as the end of a sentence; empty where it is open.
    outcome : Outcome
        Of a cycle that it ends.
    """

    gate: str
    code: str
    outcome: Outcome
    value: float | str | None
    limit: float | str | None
    closed: str = ""

    @property
    def is_open(self) -> bool:
        return not self.closed

    def to_json(self) -> dict[str, Any]:
        return {"gate": self.gate, "open": self.is_open, "code": self.code, "value": self.value, "limit": self.limit}


@dataclass(frozen=True)
class Verdict:
    """What follows: go on, or stop for the reason of the first closed gate."""

    checked: tuple[Checked, ...]

    @property
    def closed(self) -> Checked | None:
        return next((each for each in self.checked if not each.is_open), None)

    @property
    def goes_on(self) -> bool:
        return self.closed is None

    @property
    def sentence(self) -> str:
        """Why the layout stays; empty where nothing speaks against going on."""
        return "" if self.closed is None else f"The layout stays: {self.closed.closed}."


def decide(gates: Gates, evidence: Evidence) -> Verdict:
    """Look at every gate whose evidence is there, in the order of :data:`GATES`."""
    return Verdict(tuple(found for gate in GATES if (found := gate(gates, evidence)) is not None))


Gate = Callable[[Gates, Evidence], Checked | None]


def _of_recording(check: Callable[[Gates, Recording], Checked]) -> Gate:
    return lambda gates, evidence: None if evidence.recording is None else check(gates, evidence.recording)


def _of_drift(check: Callable[[Gates, Drift], Checked]) -> Gate:
    return lambda gates, evidence: None if evidence.drift is None else check(gates, evidence.drift)


def _of_comparison(check: Callable[[Gates, Compared], Checked]) -> Gate:
    return lambda gates, evidence: None if evidence.compared is None else check(gates, evidence.compared)


def _of_time(check: Callable[[Gates, Timeliness], Checked]) -> Gate:
    return lambda gates, evidence: None if evidence.timeliness is None else check(gates, evidence.timeliness)


@_of_recording
def recording_is_whole(gates: Gates, recording: Recording) -> Checked:
    """Nothing of the recording is missing, and it has a window to plan from and one to judge on."""
    missing = next((code for code in recording.warnings if code in PARTIAL), None)
    closed = ""
    if missing is not None:
        closed = f"the recording is not good enough, {PARTIAL[missing]} ({missing})"
    elif recording.windows < LEAST_WINDOWS:
        closed = f"there are {recording.windows} windows with traffic; one to plan from and one to judge on are needed"
    found = missing or f"{recording.windows} windows"
    return Checked("recording", "RECORDING_PARTIAL", Outcome.SKIPPED, found, "whole", closed)


@_of_recording
def tokens_are_enough(gates: Gates, recording: Recording) -> Checked:
    """The recording holds enough traffic to tell experts apart."""
    closed = ""
    if recording.tokens < gates.least_tokens:
        closed = f"{recording.tokens} routed tokens were recorded, at least {gates.least_tokens} are asked for"
    return Checked("tokens", "TOO_FEW_TOKENS", Outcome.SKIPPED, recording.tokens, gates.least_tokens, closed)


@_of_drift
def demand_has_drifted(gates: Gates, drift: Drift) -> Checked:
    """Traffic differs from what the running layout was planned for; open where no plan of it is known."""
    closed = ""
    if drift.mean is not None and drift.mean < gates.least_drift - TOLERANCE:
        closed = (
            f"demand has drifted by {drift.mean:.3f} (Jensen-Shannon distance) from what the running layout was "
            f"planned for, and nothing is planned below {gates.least_drift:.3f}"
        )
    return Checked("drift", "DRIFT_BELOW_THRESHOLD", Outcome.NOTHING, drift.mean, gates.least_drift, closed)


def recording_is_fresh(gates: Gates, evidence: Evidence) -> Checked | None:
    """The plan stands for traffic that was recorded a short while ago."""
    compared, timeliness = evidence.compared, evidence.timeliness
    if compared is None or timeliness is None:
        return None
    age_s = (timeliness.at - compared.recorded_at).total_seconds()
    closed = ""
    if age_s > gates.longest_recording_age_s:
        closed = f"the recording ended {duration(age_s)} ago and is good for {duration(gates.longest_recording_age_s)}"
    limit = gates.longest_recording_age_s
    return Checked("recording_age", "RECORDING_STALE", Outcome.SKIPPED, age_s, limit, closed)


@_of_comparison
def engine_is_as_it_was(gates: Gates, compared: Compared) -> Checked:
    """The engine is the one that the plan was made for, with the same layout and the same weights."""
    changed = compared.engine_changed
    closed = f"the engine is not as it was when the plan was made: {changed}" if changed else ""
    return Checked("engine", "ENGINE_CHANGED", Outcome.SKIPPED, changed or "as it was", "as it was", closed)


@_of_comparison
def there_is_something_to_move(gates: Gates, compared: Compared) -> Checked:
    """The plan differs from what runs."""
    closed = "" if compared.moved_slots else "the plan moves nothing, the engine runs as good a layout already"
    return Checked("moves", "NOTHING_TO_MOVE", Outcome.NOTHING, compared.moved_slots, 1, closed)


@_of_comparison
def gain_is_enough(gates: Gates, compared: Compared) -> Checked:
    """The plan is better on the held-out windows, by as much as was asked for."""
    closed = ""
    if compared.gain <= TOLERANCE:
        closed = f"{figure(compared)}, so the plan is no better"
    elif compared.gain < gates.least_gain - TOLERANCE:
        limit = least_gain(gates.least_gain, compared)
        closed = f"{figure(compared)}; the gain of {gain(compared)} is below the least gain of {limit}"
    return Checked("gain", "GAIN_BELOW_THRESHOLD", Outcome.NOTHING, compared.gain, gates.least_gain, closed)


@_of_comparison
def relative_gain_is_enough(gates: Gates, compared: Compared) -> Checked:
    """The gain is a large enough part of what the running layout has."""
    closed = ""
    if compared.relative_gain < gates.least_relative_gain - TOLERANCE:
        closed = (
            f"{figure(compared)}; that is {compared.relative_gain:.1%} better, below the least relative gain of "
            f"{gates.least_relative_gain:.1%}"
        )
    return Checked(
        "relative_gain",
        "GAIN_BELOW_THRESHOLD",
        Outcome.NOTHING,
        compared.relative_gain,
        gates.least_relative_gain,
        closed,
    )


@_of_comparison
def balance_is_kept(gates: Gates, compared: Compared) -> Checked:
    """Locality is not bought with imbalance."""
    before, after = compared.running.imbalance, compared.planned.imbalance
    most = max(compared.max_imbalance, before * (1 + gates.most_imbalance_rise))
    closed = ""
    if compared.objective is not Objective.BALANCE and after > most + TOLERANCE:
        closed = (
            f"on the held-out windows the plan's imbalance is {after:.3f}, the running layout's {before:.3f}, and at "
            f"most {most:.3f} is allowed"
        )
    return Checked("balance", "IMBALANCE_RISES", Outcome.NOTHING, after, most, closed)


@_of_comparison
def moves_are_within_budget(gates: Gates, compared: Compared) -> Checked:
    """Moving costs no more than was allowed."""
    closed, value, most = "", compared.moved_slots, gates.most_moved_slots
    if gates.most_moved_bytes is not None:
        most = gates.most_moved_bytes
        if compared.moved_bytes is None:
            closed = "the size of an expert is not known, so its moves cannot be held within a budget of bytes"
        else:
            value = compared.moved_bytes
            if value > most:
                closed = f"the plan moves {bytes_of(value)}, at most {bytes_of(most)} may move"
    elif most is not None and value > most:
        closed = f"the plan moves {value} slots, at most {most} may move"
    return Checked("move_budget", "MOVES_ABOVE_BUDGET", Outcome.NOTHING, value, most, closed)


@_of_time
def engine_has_rested(gates: Gates, timeliness: Timeliness) -> Checked:
    """The last change was long enough ago; twice as long for every plan in a row that was taken back."""
    taken_back = timeliness.taken_back_in_row
    limit_s = gates.cool_down_s * 2 ** min(taken_back, MOST_DOUBLINGS)
    if timeliness.last_change_at is None:
        return Checked("cool_down", "COOLING_DOWN", Outcome.SKIPPED, None, limit_s)
    # A clock that was put back does not make a change lie in the future.
    age_s = max(0.0, (timeliness.at - timeliness.last_change_at).total_seconds())
    closed = ""
    if age_s < limit_s:
        after = f" after {taken_back} in a row that were taken back" if taken_back else ""
        closed = f"the layout was changed {duration(age_s)} ago, and changes are {duration(limit_s)} apart{after}"
    return Checked("cool_down", "COOLING_DOWN", Outcome.SKIPPED, age_s, limit_s, closed)


@_of_time
def hours_are_open(gates: Gates, timeliness: Timeliness) -> Checked:
    """The engine may be changed at this time of day."""
    hours, at = gates.maintenance_hours, timeliness.at
    closed = ""
    if not are_open(hours, at, time_zone=gates.time_zone):
        opening = next_opening(hours, at, time_zone=gates.time_zone)
        until = "" if opening is None else f"; they begin at {clock(opening)}"
        closed = f"it is outside of the maintenance hours{until}"
    limit = ", ".join(f"{each.start}-{each.end} {'/'.join(each.days)}" for each in hours) or None
    return Checked("maintenance_hours", "OUTSIDE_MAINTENANCE_HOURS", Outcome.SKIPPED, at.isoformat(), limit, closed)


GATES: tuple[Gate, ...] = (
    recording_is_whole,
    tokens_are_enough,
    demand_has_drifted,
    recording_is_fresh,
    engine_is_as_it_was,
    there_is_something_to_move,
    gain_is_enough,
    relative_gain_is_enough,
    balance_is_kept,
    moves_are_within_budget,
    engine_has_rested,
    hours_are_open,
)
"""In the order in which a closed one is named."""
