"""``/metrics``: counts of requests from this process, and the service's state as the database has it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.service.context import Service
from api.states import EngineState, JobState
from api.store import engines, jobs, plans, traces
from api.store.columns import now
from placement.errors import CodedError


class HttpMetrics:
    """Counts requests by route, never by path: ids are no labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("method", "route", "status")
        self._requests = Counter("moeplan_http_requests", "Requests answered.", labels, registry=registry)
        self._seconds = Histogram(
            "moeplan_http_request_seconds", "Time to answer.", ("method", "route"), registry=registry
        )

    def seen(self, *, method: str, route: str, status: int, took_s: float) -> None:
        """Count an answer."""
        known = method if method in ("GET", "POST", "PATCH", "PUT", "DELETE", "HEAD") else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(took_s)


class StateCollector(Collector):
    """Reads jobs, workers, engines and the newest plans and recordings from the database when asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("moeplan_database_up", "Whether the database answers.")
        try:
            found = list(self._state())
        except CodedError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from found

    def _state(self) -> Iterator[Metric]:
        with self._service.database.reading() as session:
            counted = jobs.counts(session)
            alive = jobs.workers(session)
            there = engines.all_there(session)
            newest_plans = plans.newest_by_engine(session)
            newest_traces = traces.newest_by_engine(session)
        at = now()
        job_states = GaugeMetricFamily("moeplan_jobs", "Jobs by kind and state.", labels=["kind", "state"])
        for kind, state, count in counted:
            job_states.add_metric([str(kind), str(state)], count)
        waiting = sum(count for _, state, count in counted if state is JobState.QUEUED)
        yield job_states
        yield GaugeMetricFamily("moeplan_jobs_waiting", "Jobs that no worker has taken yet.", value=waiting)
        worker_age = GaugeMetricFamily("moeplan_worker_seen_seconds", "Since a worker was seen.", labels=["worker"])
        for worker in alive:
            worker_age.add_metric([worker.id], (at - worker.seen_at).total_seconds())
        yield worker_age
        names = {engine.id: engine.name for engine in there}
        engine_up = GaugeMetricFamily("moeplan_engine_up", "Whether an engine answered last time.", labels=["engine"])
        failures = GaugeMetricFamily("moeplan_engine_failures_in_row", "Failures in a row.", labels=["engine"])
        resting = GaugeMetricFamily("moeplan_engine_resting", "1 while an engine is left alone.", labels=["engine"])
        for engine in there:
            engine_up.add_metric([engine.name], float(engine.state in (EngineState.READY, EngineState.LIMITED)))
            failures.add_metric([engine.name], engine.failures_in_row)
            resting.add_metric([engine.name], float(engine.resting_until is not None and engine.resting_until > at))
        yield from (engine_up, failures, resting)
        figures = {
            "plan_local_gpu": ("Share of routed tokens served on the home GPU, predicted.", "local_gpu"),
            "plan_imbalance": ("Imbalance of the worst window, predicted.", "imbalance"),
            "plan_gap": ("Distance from the proven bound.", "gap"),
            "plan_moved_slots": ("Slots that move.", "moved_slots"),
            "plan_solve_seconds": ("Time of the solver.", "solve_seconds"),
        }
        for metric, (text, field) in figures.items():
            family = GaugeMetricFamily(f"moeplan_{metric}", f"Newest plan: {text}", labels=["engine"])
            for plan in newest_plans:
                value = getattr(plan, field)
                if value is not None and plan.engine_id in names:
                    family.add_metric([names[plan.engine_id]], value)
            yield family
        for metric, text, rows in (
            ("moeplan_plan_age_seconds", "Age of the newest plan.", newest_plans),
            ("moeplan_trace_age_seconds", "Age of the newest recording.", newest_traces),
        ):
            family = GaugeMetricFamily(metric, text, labels=["engine"])
            for row in rows:
                if row.engine_id in names:
                    family.add_metric([names[row.engine_id]], (at - row.created_at).total_seconds())
            yield family
