"""Migrations make what the models say, on both databases, and say what is wrong with a database that is not theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.errors import DatabaseOutdated, DatabaseTooNew, DatabaseUnreachable
from api.store.database import Database
from api.store.migrate import differences, is_new, require_current, upgrade
from api.store.models import Base
from tests.databases import open_database


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return open_database(f"sqlite:///{tmp_path / 'folder' / 'new.db'}")
    make: Callable[[], str] = request.getfixturevalue("empty_postgres_url")
    return open_database(make())


def test_migrations_make_exactly_the_models(database: Database) -> None:
    with database.connection() as connection:
        assert differences(connection) == []


def test_a_column_that_no_migration_makes_is_noticed(database: Database) -> None:
    with database.connection() as connection:
        connection.execute(sa.text("ALTER TABLE keys DROP COLUMN last_used_at"))
        found = differences(connection)
    assert [step[0] for step in found if isinstance(step, tuple)] == ["add_column"]


def test_tables_of_others_are_no_difference(database: Database) -> None:
    with database.connection() as connection:
        connection.execute(sa.text("CREATE TABLE tables_of_others (id INTEGER)"))
        assert differences(connection) == []


def test_upgrade_runs_once_and_then_has_nothing_to_do(empty: Database) -> None:
    assert is_new(empty)
    with pytest.raises(DatabaseOutdated, match="moeplan db upgrade"):
        require_current(empty)
    before, after = upgrade(empty)
    assert before is None
    assert upgrade(empty) == (after, after)
    assert require_current(empty) == after
    assert not is_new(empty)
    empty.close()


def test_a_newer_database_is_left_alone(database: Database) -> None:
    with database.connection() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for action in (upgrade, require_current):
        with pytest.raises(DatabaseTooNew, match="9999"):
            action(database)


def test_an_upgrade_that_fails_changes_nothing(empty: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(empty)
    with empty.connection() as connection:
        Base.metadata.tables["decisions"].drop(connection)
        connection.execute(sa.text("DELETE FROM alembic_version"))
    with pytest.raises(sa.exc.DBAPIError):  # the first table is there already
        upgrade(empty)
    with empty.connection() as connection:
        assert not sa.inspect(connection).has_table("decisions")
        assert connection.execute(sa.text("SELECT count(*) FROM alembic_version")).scalar() == 0
    empty.close()


def test_a_server_that_does_not_answer_is_one_sentence() -> None:
    gone = open_database("postgresql://moeplan:hidden-password@127.0.0.1:9/moeplan")
    with pytest.raises(DatabaseUnreachable) as refused:
        gone.require_reachable()
    assert "hidden-password" not in str(refused.value)
    assert "127.0.0.1:9" in str(refused.value)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseUnreachable, match="cannot be made"):
        upgrade(open_database(f"sqlite:///{tmp_path / 'file' / 'moeplan.db'}"))
