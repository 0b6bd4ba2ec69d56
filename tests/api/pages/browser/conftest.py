"""One browser for all of these tests, and a service with a worker and a replay engine to click through."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from api.service.context import Service
from tests.api.http.conftest import ADMIN_KEY, READ_KEY
from tests.api.pages.chromium import MISSING, chromium_program, running_chromium, served
from tests.api.services import WorkerProcess, replay_engine, service_on


# Not of the session: while Playwright runs, its event loop does, and the process's other tests could start none.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = chromium_program()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with running_chromium(program) as browser:
        yield browser


@dataclass(frozen=True)
class Site:
    """A served service: its address, its state, and an engine that can be registered."""

    url: str
    service: Service
    engine_url: str


@pytest.fixture(scope="module")
def site(chromium: Browser, migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A service as it is at its first start: nothing in it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(migrated_sqlite, folder / "moeplan.db")
    with (
        service_on(f"sqlite:///{folder}/moeplan.db", folder / "data") as service,
        replay_engine() as engine_url,
        WorkerProcess(service.settings, "worker-of-the-pages"),
        served(service) as url,
    ):
        yield Site(url, service, engine_url)


@pytest.fixture(scope="module")
def guarded_url(chromium: Browser, migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with keys, without a worker."""
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copy(migrated_sqlite, folder / "moeplan.db")
    database = f"sqlite:///{folder}/moeplan.db"
    with (
        service_on(database, folder / "data", admin_api_key=ADMIN_KEY, api_key=READ_KEY) as service,
        served(service) as url,
    ):
        yield url
