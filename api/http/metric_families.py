"""Gauges and counters made from rows of the database."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Values = Iterable[tuple[tuple[str, ...], float | None]]
"""The values of the labels, and the value; None gives no series: what is unknown is absent, and not 0."""


def gauge(name: str, text: str, labels: tuple[str, ...], values: Values) -> GaugeMetricFamily:
    """Return a gauge with a series for every value that is there."""
    family = GaugeMetricFamily(f"moeplan_{name}", text, labels=labels)
    _fill(family, values)
    return family


def counter(name: str, text: str, labels: tuple[str, ...], values: Values) -> CounterMetricFamily:
    """Return a counter with a series for every value that is there; its name ends in ``_total``."""
    family = CounterMetricFamily(f"moeplan_{name}", text, labels=labels)
    _fill(family, values)
    return family


def _fill(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> None:
    for labels, value in values:
        if value is not None:
            family.add_metric(list(labels), float(value))
