"""An upgrade and its taking back keep every row: tried with a row in every table, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.errors import BadRevision, DatabaseOutdated
from api.store.columns import Moment, OneOf
from api.store.database import Database
from api.store.migrate import differences, downgrade, require_current, revisions, upgrade
from api.store.models import Base
from tests.api.cli.command import Moeplan
from tests.databases import open_database

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
Rows = dict[str, dict[str, Any]]

ONLY_SINCE = {"schedules": "0003", "decisions": "0003", "forgotten_decisions": "0005"}
"""Tables that are empty in an older schema: no moeplan of then wrote into them."""


def fill(database: Database) -> Rows:
    """Put a row with a value in every column into every table, and return them."""
    made: Rows = {}
    with database.connection() as connection:
        for table in Base.metadata.sorted_tables:
            made[table.name] = {column.name: value_of(column) for column in table.columns}
            connection.execute(table.insert().values(made[table.name]))
    return made


def value_of(column: sa.Column[Any]) -> Any:
    kind = column.type
    for key in column.foreign_keys:  # of the one row that is there
        return value_of(key.column)
    if isinstance(kind, OneOf):
        return next(iter(kind.kind))
    if isinstance(kind, Moment):
        return NOON
    if isinstance(kind, sa.JSON):
        return {"of": [column.name, 1]}
    if isinstance(kind, sa.LargeBinary):
        return column.name.encode()
    if isinstance(kind, sa.Boolean):
        return True
    if isinstance(kind, sa.Float):
        return 0.25
    if isinstance(kind, sa.Integer):
        return 7
    text = f"{column.table.name}-{column.name}"
    return text[: kind.length] if isinstance(kind, sa.String) and kind.length else text


def rows(database: Database) -> Rows:
    with database.connection() as connection:
        return {
            table.name: dict(connection.execute(table.select()).mappings().one())
            for table in Base.metadata.sorted_tables
        }


def columns(database: Database) -> dict[str, set[str]]:
    with database.connection() as connection:
        inspector = sa.inspect(connection)
        return {
            name: {column["name"] for column in inspector.get_columns(name)} for name in inspector.get_table_names()
        }


@pytest.mark.parametrize("revision", revisions()[:-1])
def test_rows_survive_going_back_and_forth(database: Database, revision: str) -> None:
    newest = revisions()[-1]
    before = fill(database)
    assert rows(database) == before
    assert downgrade(database, revision) == (newest, revision)
    older = columns(database)
    with pytest.raises(DatabaseOutdated, match=f"revision {revision}"):
        require_current(database)
    assert upgrade(database) == (revision, newest)
    with database.connection() as connection:
        assert differences(connection) == []
        assert set(older) <= set(sa.inspect(connection).get_table_names())
    for table, row in before.items():
        if table not in older:
            continue
        with database.connection() as connection:
            kept = connection.execute(Base.metadata.tables[table].select()).mappings().one_or_none()
        if revision < ONLY_SINCE.get(table, ""):
            assert kept is None
            continue
        assert kept is not None
        for name in older[table]:
            assert kept[name] == row[name], f"{table}.{name}"


def test_going_back_to_where_it_is_changes_nothing(database: Database) -> None:
    newest = revisions()[-1]
    before = fill(database)
    assert downgrade(database, newest) == (newest, newest)
    assert rows(database) == before


@pytest.mark.parametrize("revision", ["9999", "base", "head", "-1", "heads@x"])
def test_it_goes_back_only_to_what_was_there(database: Database, revision: str) -> None:
    with pytest.raises(BadRevision, match=revisions()[-1]):
        downgrade(database, revision)


def test_an_empty_database_has_nothing_before_it(tmp_path: Path) -> None:
    empty = open_database(f"sqlite:///{tmp_path / 'new.db'}")
    with pytest.raises(BadRevision, match="nothing before it"):
        downgrade(empty, revisions()[0])
    empty.close()


def test_the_command_says_what_it_did(
    capsys: pytest.CaptureFixture[str], database: Database, database_url: str
) -> None:
    moeplan = Moeplan(capsys)
    first, newest = revisions()[0], revisions()[-1]
    refused = moeplan.refused("db", "downgrade", "9999", "--database-url", database_url, code="BAD_REVISION")
    assert first in refused
    went = moeplan("db", "downgrade", first, "--database-url", database_url)
    assert went.code == 0
    assert f"revision {first}" in went.out
    assert f"revision {newest}" in moeplan("db", "upgrade", "--database-url", database_url).out
