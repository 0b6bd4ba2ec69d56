"""The whole OpenAPI description tried on the real application: no 5xx, no status or body that it does not name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, CheckFunction, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from api.http.app import create_app
from api.states import PlanState
from tests.api.http.conftest import ADMIN_KEY, READ_KEY
from tests.api.schedules import decisions_of, register, run_now, scheduled, stop
from tests.api.services import counts_trace, plan_for_replay, ready_plan, ready_trace, service_on

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

EXAMPLES = int(os.environ.get("MOEPLAN_TEST_REQUESTS", "4"))
"""Requests for every operation and kind of data; more are tried before a release (see CONTRIBUTING)."""

EXAMPLES_ON_POSTGRESQL = max(2, EXAMPLES // 4)
"""The same code but for the database: enough that every statement is run there."""


def bounded(examples: int) -> settings:
    """Return settings under which equal runs try equal requests, a bounded number."""
    return settings(
        max_examples=examples,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture
def app(migrated_sqlite: Path, tmp_path: Path) -> Iterator[FastAPI]:
    file = tmp_path / "moeplan.db"
    shutil.copy(migrated_sqlite, file)
    with filled_app(f"sqlite:///{file}", tmp_path) as made:
        yield made


@pytest.fixture
def app_on_postgresql(
    migrated_postgres: str, empty_postgres_url: Callable[[str], str], tmp_path: Path
) -> Iterator[FastAPI]:
    with filled_app(empty_postgres_url(migrated_postgres), tmp_path) as made:
        yield made


@contextmanager
def filled_app(database_url: str, tmp_path: Path) -> Iterator[FastAPI]:
    """A service with a recording, a plan, a schedule and a decision, whose ids are in ``app.state.there``."""
    with service_on(database_url, tmp_path / "data", admin_api_key=ADMIN_KEY, api_key=READ_KEY) as service:
        made = create_app(service)
        schedule_id = scheduled(service, register(service, "http://127.0.0.1:9"))
        stop(service, run_now(service, schedule_id))
        made.state.there = {
            "schedule_id": schedule_id,
            "decision_id": decisions_of(service)[0].id,
            "trace_id": ready_trace(service, counts_trace(tmp_path, [[4, 3, 2, 1]])),
            "plan_id": ready_plan(service, plan_for_replay(), engine_id=None, state=PlanState.PROPOSED),
        }
        yield made


@pytest.mark.parametrize("key", [ADMIN_KEY, READ_KEY, None], ids=["admin", "read", "no key"])
def test_every_answer_is_described(app: FastAPI, key: str | None) -> None:
    statuses = tried(app, key, examples=EXAMPLES)
    assert len(statuses) >= 40
    if key is None:
        let_in = {label for label, seen in statuses.items() if " /v1/" in label and min(seen) < 400}
        assert let_in == set()


@pytest.mark.thorough
def test_every_answer_is_described_on_postgresql(app_on_postgresql: FastAPI) -> None:
    assert len(tried(app_on_postgresql, ADMIN_KEY, examples=EXAMPLES_ON_POSTGRESQL)) >= 40


def tried(app: FastAPI, key: str | None, *, examples: int) -> dict[str, set[int]]:
    """Try every operation and check every answer; return the statuses of each."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    statuses: dict[str, set[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        seen = statuses.setdefault(operation.label, set())
        for strategy in _strategies(operation, app.state.there):
            bounded(examples)(given(strategy)(_checked(headers, seen)))()
    return statuses


def _strategies(operation: Any, there: dict[str, str]) -> Iterator[Any]:
    yield operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    names = {parameter.name for parameter in operation.path_parameters}
    if names and names <= set(there):
        yield operation.as_strategy(path_parameters={name: there[name] for name in names})
    if any(True for _ in operation.iter_parameters()) or operation.body:
        yield operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)


def _checked(headers: dict[str, str], seen: set[int]) -> Callable[[Case], None]:
    def check(case: Case) -> None:
        response = case.call(headers=headers)
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS, headers=headers)

    return check
