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

# A busy machine must not fail a test: no example is timed, and equal runs try equal examples.
settings.register_profile("moeplan", deadline=None, derandomize=True)
settings.load_profile("moeplan")


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    """Undo what a service that a test runs in this process says of logs: other tests look at warnings."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
