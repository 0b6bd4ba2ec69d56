"""A service on SQLite for the pages; what they show does not depend on the database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.service.context import Service
from tests.api.http.conftest import ADMIN_KEY, READ_KEY, client_of
from tests.api.services import service_on


@pytest.fixture
def database_file(migrated_sqlite: Path, tmp_path: Path) -> str:
    file = tmp_path / "moeplan.db"
    shutil.copy(migrated_sqlite, file)
    return f"sqlite:///{file}"


@pytest.fixture
def service(database_file: str, tmp_path: Path) -> Iterator[Service]:
    """A service without a key: it answers this machine."""
    with service_on(database_file, tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def guarded(database_file: str, tmp_path: Path) -> Iterator[Service]:
    """A service with both keys."""
    with service_on(database_file, tmp_path / "data", admin_api_key=ADMIN_KEY, api_key=READ_KEY) as opened:
        yield opened


@pytest.fixture
def browser(service: Service) -> TestClient:
    """A browser on the service's own machine."""
    return client_of(service)
