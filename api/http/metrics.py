"""Counts of requests in ``/metrics``, those of this process; the service's state is :mod:`api.http.state_metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram


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
