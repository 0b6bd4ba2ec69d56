"""Settings of all tests."""

from __future__ import annotations

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
