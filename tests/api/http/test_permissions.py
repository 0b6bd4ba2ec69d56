"""Who may do what: every route of the application with every kind of key. A new route needs a row here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.http.app import create_app
from api.service.context import Service
from api.states import Level
from api.store.columns import now
from api.store.models import Key
from tests.api.http.conftest import ADMIN_KEY, READ_KEY, client_of

pytestmark = pytest.mark.one_database

OPEN, READ, ADMIN = "open", "read", "admin"

NEEDED = {
    "GET /openapi.json": OPEN,
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": OPEN,
    "GET /v1/audit": READ,
    "GET /v1/engines": READ,
    "POST /v1/engines": ADMIN,
    "GET /v1/engines/{engine_id}": READ,
    "PATCH /v1/engines/{engine_id}": ADMIN,
    "DELETE /v1/engines/{engine_id}": ADMIN,
    "POST /v1/engines/{engine_id}/read": ADMIN,
    "GET /v1/traces": READ,
    "POST /v1/traces": ADMIN,
    "POST /v1/traces/capture": ADMIN,
    "GET /v1/traces/{trace_id}": READ,
    "PATCH /v1/traces/{trace_id}": ADMIN,
    "DELETE /v1/traces/{trace_id}": ADMIN,
    "GET /v1/traces/{trace_id}/content": READ,
    "GET /v1/traces/{trace_id}/heat": READ,
    "GET /v1/traces/{trace_id}/experts/{layer}/{expert}": READ,
    "GET /v1/traces/{trace_id}/frames": READ,
    "GET /v1/traces/{trace_id}/order": READ,
    "GET /v1/traces/{trace_id}/traffic": READ,
    "GET /v1/plans": READ,
    "GET /v1/plans/{plan_id}/sizes": READ,
    "POST /v1/plans/{plan_id}/sizes": ADMIN,
    "POST /v1/plans": ADMIN,
    "GET /v1/plans/{plan_id}": READ,
    "GET /v1/plans/{plan_id}/file": READ,
    "GET /v1/plans/{plan_id}/comparison": READ,
    "GET /v1/plans/{plan_id}/report": READ,
    "GET /v1/plans/{plan_id}/export": READ,
    "GET /v1/plans/{plan_id}/diff": READ,
    "POST /v1/plans/{plan_id}/approve": ADMIN,
    "POST /v1/plans/{plan_id}/reject": ADMIN,
    "GET /v1/rollouts": READ,
    "POST /v1/rollouts": ADMIN,
    "GET /v1/rollouts/{rollout_id}": READ,
    "POST /v1/rollouts/{rollout_id}/rollback": ADMIN,
    "GET /v1/schedules": READ,
    "POST /v1/schedules": ADMIN,
    "GET /v1/schedules/{schedule_id}": READ,
    "PATCH /v1/schedules/{schedule_id}": ADMIN,
    "DELETE /v1/schedules/{schedule_id}": ADMIN,
    "POST /v1/schedules/{schedule_id}/pause": ADMIN,
    "POST /v1/schedules/{schedule_id}/resume": ADMIN,
    "POST /v1/schedules/{schedule_id}/run": ADMIN,
    "GET /v1/decisions": READ,
    "GET /v1/decisions/{decision_id}": READ,
    "GET /v1/jobs": READ,
    "GET /v1/jobs/{job_id}": READ,
    "GET /v1/jobs/{job_id}/course": READ,
    "GET /v1/jobs/{job_id}/events": READ,
    "POST /v1/jobs/{job_id}/cancel": ADMIN,
    "GET /v1/keys": ADMIN,
    "POST /v1/keys": ADMIN,
    "GET /v1/keys/{key_id}": ADMIN,
    "DELETE /v1/keys/{key_id}": ADMIN,
}
"""The least key that opens a route. The dashboard's pages have no rows: tests/api/pages/test_access.py tries all of
them, and every one that is not named there as open must ask for a key."""

LET_IN: dict[str | None, set[str]] = {
    "admin": {OPEN, READ, ADMIN},
    "read": {OPEN, READ},
    "expired": {OPEN},
    "revoked": {OPEN},
    "unknown": {OPEN},
    None: {OPEN},
}


def routes_of(routes: Any) -> Iterator[Any]:
    """Yield every route, also those of routers that were included."""
    for route in routes:
        if hasattr(route, "effective_candidates"):
            yield from routes_of(route.effective_candidates())
            yield from routes_of(route.effective_low_priority_routes())
        else:
            yield route


def operations(service: Service) -> set[str]:
    """Return method and path of everything that the application answers and that is no page."""
    return {operation for operation, is_page in _answered(service) if not is_page}


def pages(service: Service) -> set[str]:
    """Return method and path of every page."""
    return {operation for operation, is_page in _answered(service) if is_page}


def _answered(service: Service) -> Iterator[tuple[str, bool]]:
    for route in routes_of(create_app(service).routes):
        assert route.methods, f"{route!r} is no plain route: say here who may use it"
        is_page = not route.include_in_schema and not route.path.startswith(("/v1", "/openapi.json"))
        for method in route.methods - {"HEAD", "OPTIONS"}:
            yield f"{method} {route.path}", is_page


def key_of(service: Service, kind: str | None) -> str | None:
    """Return a key; those that open nothing had the level admin."""
    if kind in ("expired", "revoked"):
        admin = client_of(service, ADMIN_KEY)
        made = admin.post("/v1/keys", json={"name": str(kind), "level": "admin"}).json()
        with service.database.writing() as session:
            row = session.get_one(Key, made["id"])
            over = now() - timedelta(seconds=1)
            row.expires_at, row.revoked_at = (over, None) if kind == "expired" else (None, over)
        return str(made["key"])
    return {"admin": ADMIN_KEY, "read": READ_KEY, "unknown": "mp_nobody-made-this-key", None: None}[kind]


def asked(client: TestClient, operation: str) -> int:
    """Ask for something that is not there; return the status."""
    method, path = operation.split(" ", 1)
    return client.request(method, re.sub(r"\{[^}]*\}", "0", path)).status_code


def test_every_route_has_a_row(service: Service) -> None:
    there = operations(service)
    assert there - set(NEEDED) == set(), "say in NEEDED which key opens these"
    assert set(NEEDED) - there == set(), "these are gone"


@pytest.mark.parametrize("kind", LET_IN)
def test_a_key_opens_what_it_should_and_nothing_else(service: Service, kind: str | None) -> None:
    client = client_of(service, key_of(service, kind))
    wrong = {}
    for operation, needed in NEEDED.items():
        status = asked(client, operation)
        refused = 403 if kind == "read" else 401
        expected = status not in (401, 403) if needed in LET_IN[kind] else status == refused
        if not expected:
            wrong[operation] = status
    assert wrong == {}


def test_who_is_refused_changed_nothing(service: Service) -> None:
    """The doors are tried before what is sent is looked at: bodies that would be taken are not."""
    bodies = {
        "POST /v1/engines": {"name": "e", "url": "http://127.0.0.1:9"},
        "POST /v1/keys": {"name": "k", "level": Level.ADMIN},
    }
    for kind in ("read", "expired", "unknown", None):
        client = client_of(service, key_of(service, kind))
        for operation, body in bodies.items():
            assert client.request(*operation.split(" "), json=body).status_code in (401, 403)
    admin = client_of(service, ADMIN_KEY)
    assert admin.get("/v1/engines").json()["items"] == []
    assert {key["name"] for key in admin.get("/v1/keys").json()["items"]} == {"expired"}
