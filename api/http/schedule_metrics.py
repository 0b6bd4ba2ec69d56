"""Metrics of schedules and decisions, read from the database with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from api.states import Outcome
from api.store import decisions, schedules
from api.store.database import Session

LABELS = ["engine", "schedule"]


def schedule_metrics(session: Session, *, engine_names: Mapping[str, str]) -> Iterator[Metric]:
    """Return the metrics of all schedules that are there; the label ``schedule`` is the id, names may repeat."""
    success = GaugeMetricFamily(
        "moeplan_schedule_last_success_timestamp_seconds",
        "When a cycle last came to a decision about a plan; absent until then.",
        labels=LABELS,
    )
    due = GaugeMetricFamily(
        "moeplan_schedule_next_due_timestamp_seconds", "When the next tick is due; absent while paused.", labels=LABELS
    )
    paused = GaugeMetricFamily("moeplan_schedule_paused", "1 while a schedule is paused.", labels=LABELS)
    missed = CounterMetricFamily(
        "moeplan_schedule_missed_ticks", "Ticks that passed while no worker ran.", labels=LABELS
    )
    cycles = CounterMetricFamily(
        "moeplan_schedule_cycles", "Cycles begun, also those that ended at once.", labels=LABELS
    )
    for schedule in schedules.all_there(session):
        labels = [engine_names.get(schedule.engine_id, schedule.engine_id), schedule.id]
        for family, moment in ((success, schedule.last_success_at), (due, schedule.next_due_at)):
            if moment is not None:
                family.add_metric(labels, moment.timestamp())
        paused.add_metric(labels, float(schedule.paused))
        missed.add_metric(labels, schedule.missed_ticks)
        cycles.add_metric(labels, schedule.cycles)
    yield from (success, due, paused, missed, cycles)

    ended = CounterMetricFamily("moeplan_decisions", "How rebalancing cycles ended.", labels=["outcome"])
    counted = dict(decisions.counts(session))
    for outcome in Outcome:
        ended.add_metric([str(outcome)], counted.get(outcome, 0))
    yield ended
