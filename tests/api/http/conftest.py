"""The application over a real database, without workers: jobs stay queued unless a test starts one."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.datastructures import State

from api.http.app import bound, routed
from api.service.context import Service
from tests.api.services import service_on

ADMIN_KEY = "admin-key-of-the-tests"
READ_KEY = "read-key-of-the-tests"
LOOPBACK = "http://127.0.0.1:8430"

NewClient = Callable[..., TestClient]


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    """A service with both keys."""
    with service_on(database_url, tmp_path / "data", admin_api_key=ADMIN_KEY, api_key=READ_KEY) as opened:
        yield opened


@pytest.fixture
def open_service_(database_url: str, tmp_path: Path) -> Iterator[Service]:
    """A service without any key."""
    with service_on(database_url, tmp_path / "data") as opened:
        yield opened


@functools.cache
def _routed() -> FastAPI:
    """Build the routes once in a process: that takes longer than most tests."""
    return routed()


def app_of(service: Service) -> FastAPI:
    """Return an application as ``create_app`` builds it."""
    app = copy.copy(_routed())
    app.state, app.user_middleware = State({"pages": _routed().state.pages}), []
    return bound(app, service)


def client_of(service: Service, key: str | None = None, *, host: str = "127.0.0.1", url: str = LOOPBACK) -> TestClient:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return TestClient(
        app_of(service), base_url=url, client=(host, 50000), headers=headers, raise_server_exceptions=False
    )


@pytest.fixture
def admin(service: Service) -> TestClient:
    return client_of(service, ADMIN_KEY)


@pytest.fixture
def reader(service: Service) -> TestClient:
    return client_of(service, READ_KEY)
