"""Bringing a database to this moeplan's schema, and telling whether it is there."""

from __future__ import annotations

from importlib.resources import files

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection, inspect

from api.errors import BadRevision, DatabaseOutdated, DatabaseTooNew, DatabaseUnreachable
from api.store.database import Database, sqlite_file
from api.store.models import Base

UPGRADE = "run moeplan db upgrade"


def upgrade(database: Database) -> tuple[str | None, str]:
    """Run the migrations that are missing; return the revision before and after.

    Raises
    ------
    DatabaseUnreachable
        Or the folder of its file cannot be made.
    DatabaseTooNew
        A newer moeplan has made it: nothing is changed.
    """
    make_folder(database)
    database.write_ahead()
    with database.connection() as connection:
        before = _revision(connection)
        _require_known(before, database)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        return before, _newest()


def downgrade(database: Database, revision: str) -> tuple[str | None, str]:
    """Take migrations back, for an older moeplan; return the revision before and after.

    What only newer revisions keep is lost; all else stays. Nothing else may use the database meanwhile.

    Raises
    ------
    DatabaseUnreachable, DatabaseTooNew
    BadRevision
        It is none of this moeplan's, or not before the database's own.
    """
    with database.connection() as connection:
        before = _revision(connection)
        _require_known(before, database)
        all_revisions = revisions()
        earlier = all_revisions[: all_revisions.index(before) + 1] if before is not None else []
        if revision not in earlier:
            raise BadRevision(
                f"{database.shown} has revision {before or 'none'}; it can go back to "
                f"{', '.join(earlier) or 'none, for there is nothing before it'}, not to {revision[:40]!r}."
            )
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
    return before, revision


def revisions() -> list[str]:
    """Return the revisions that this moeplan knows, the oldest first."""
    return [each.revision for each in reversed(list(ScriptDirectory.from_config(_config()).walk_revisions()))]


def make_folder(database: Database) -> None:
    """Make the folder of a SQLite file. Raises :class:`DatabaseUnreachable`."""
    file = sqlite_file(database.url)
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise DatabaseUnreachable(f"the folder {file.parent} cannot be made: {error.strerror}.") from error


def require_current(database: Database) -> str:
    """Return the revision when it is this moeplan's.

    Raises
    ------
    DatabaseUnreachable, DatabaseOutdated, DatabaseTooNew
        Saying what to do.
    """
    file = sqlite_file(database.url)
    if file is not None and not file.exists():
        raise DatabaseOutdated(f"{database.shown} does not exist yet; {UPGRADE}.")
    with database.connection() as connection:
        found = _revision(connection)
    _require_known(found, database)
    if found != _newest():
        raise DatabaseOutdated(
            f"{database.shown} has revision {found or 'none'}, this moeplan needs {_newest()}; {UPGRADE}."
        )
    return found


def is_new(database: Database) -> bool:
    """Whether nothing was ever stored there."""
    file = sqlite_file(database.url)
    if file is not None and not file.exists():
        return True
    with database.connection() as connection:
        return _revision(connection) is None and not inspect(connection).has_table("engines")


def differences(connection: Connection) -> list[object]:
    """Return how the tables of a database differ from the models; tables that are not ours are left out."""
    ours = set(Base.metadata.tables)
    context = MigrationContext.configure(
        connection,
        opts={
            "compare_type": True,
            "compare_server_default": True,
            "include_name": lambda name, kind, _: kind != "table" or name in ours,
        },
    )
    return list(compare_metadata(context, Base.metadata))


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _newest() -> str:
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    if newest is None:
        raise DatabaseOutdated("this installation of moeplan lacks its migrations; install it again.")
    return newest


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _require_known(revision: str | None, database: Database) -> None:
    if revision is None:
        return
    try:
        known = ScriptDirectory.from_config(_config()).get_revision(revision)
    except CommandError:
        known = None
    if known is None:
        raise DatabaseTooNew(
            f"{database.shown} has revision {revision}, which this moeplan does not know: a newer one made it. Use "
            f"that one, also to go back: moeplan db downgrade {_newest()}."
        )
