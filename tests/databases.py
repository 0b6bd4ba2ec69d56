"""Databases for tests, made by the migrations: every test that takes ``database`` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from api.jobs import durable
from api.settings import read_settings
from api.store.database import Database
from api.store.migrate import upgrade
from tests.postgres import MISSING, running_postgres, server_programs

NewUrl = Callable[[], str]


def needed_programs() -> Path:
    """Return where PostgreSQL's programs are; without them a test is left out, in CI it fails."""
    programs = server_programs()
    if programs is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return programs


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A running server's URL, with %s for the name of a database."""
    programs = needed_programs()
    with running_postgres(programs) as url:
        yield url


@pytest.fixture(scope="session")
def empty_postgres_url(postgres: str) -> NewUrl:
    """Make a new, empty database and give its URL."""

    def make(template: str = "template0") -> str:
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(postgres % "postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return postgres % name

    return make


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("template") / "moeplan.db"
    _migrate(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def migrated_postgres(empty_postgres_url: Callable[..., str]) -> str:
    """The name of a database to copy."""
    url = empty_postgres_url()
    _migrate(url)
    return str(make_url(url).database)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database as ``moeplan db upgrade`` leaves it."""
    if request.param == "sqlite":
        file = tmp_path / "moeplan.db"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), file)
        return f"sqlite:///{file}"
    template = request.getfixturevalue("migrated_postgres")
    url: str = request.getfixturevalue("empty_postgres_url")(template)
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url)
    yield opened
    opened.close()


def open_database(url: str) -> Database:
    return Database(read_settings(database_url=url).database)


def _migrate(url: str) -> None:
    database = open_database(url)
    upgrade(database)
    durable.upgrade(database.url)
    database.close()
