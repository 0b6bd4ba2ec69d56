"""Settings of all tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.databases import (  # noqa: F401  (fixtures)
    database,
    database_url,
    empty_postgres_url,
    migrated_postgres,
    migrated_sqlite,
    postgres,
)
from tests.postgres import server_programs

# A busy machine must not fail a test: no example is timed, and equal runs try equal examples.
settings.register_profile("moeplan", deadline=None, derandomize=True)
settings.load_profile("moeplan")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the second database of tests that are about something else to thorough runs."""
    second = "sqlite" if server_programs() else "postgresql"
    for item in items:
        parameters = getattr(item, "callspec", None)
        if item.get_closest_marker("one_database") and parameters and second in parameters.params.values():
            item.add_marker("thorough")


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    """Undo what a service that a test runs in this process says of logs: other tests look at warnings."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
