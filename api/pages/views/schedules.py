"""Schedules and decisions in words, and decisions as points in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.pages.words import long_time
from api.report.numbers import byte_size, count
from api.store.models import Decision, Schedule

DURATIONS = ("cool_down_s", "longest_recording_age_s")
COUNTS = ("least_tokens", "most_moved_slots")


def times_in_words(schedule: Schedule) -> str:
    """Say when a schedule's ticks are."""
    if schedule.cron is not None:
        return f"at {schedule.cron} ({schedule.time_zone})"
    return f"every {long_time(schedule.interval_s).removeprefix('1 ')}"


def gates_in_words(gates: Mapping[str, Any]) -> dict[str, str]:
    """Return what must hold before a plan is proposed or pushed, by its name in the API."""
    return {name: _gate(name, value) for name, value in gates.items() if value not in (None, [], ())}


def decision_rows(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return decisions as a chart takes them: when, which outcome, and the sentence."""
    return [
        {"at": each.created_at.isoformat(), "outcome": str(each.outcome), "sentence": each.sentence, "id": each.id}
        for each in decisions
    ]


@dataclass(frozen=True)
class GateRow:
    """One gate as a cycle found it."""

    name: str
    is_open: bool
    code: str
    value: str
    limit: str


def gate_rows(numbers: Mapping[str, Any]) -> tuple[GateRow, ...]:
    """Return the gates that a cycle came to, in their order; the last one may be closed."""
    return tuple(
        GateRow(
            name=str(each["gate"]),
            is_open=bool(each["open"]),
            code=str(each["code"]),
            value=_number(each.get("value")),
            limit=_number(each.get("limit")),
        )
        for each in numbers.get("gates", ())
    )


def number_rows(numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a decision's numbers, those inside others under both names, in the order in which they were found."""
    rows: list[tuple[str, str]] = []
    for name, value in numbers.items():
        if name == "gates":
            continue  # they have a table of their own
        if isinstance(value, Mapping):
            rows += [(f"{name}.{inner}", text) for inner, text in number_rows(value)]
        else:
            rows.append((name, _number(value)))
    return rows


def _gate(name: str, value: Any) -> str:
    if name in DURATIONS:
        return long_time(float(value))
    if name in COUNTS:
        return count(int(value))
    if name.endswith("_bytes"):
        return byte_size(int(value))
    if name == "maintenance_hours":
        return "; ".join(f"{', '.join(each['days'])} {each['start']} to {each['end']}" for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, list | tuple):
        return ", ".join(_number(each) for each in value)
    return "\N{EN DASH}" if value is None else str(value)
