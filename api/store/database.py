"""Opening the database: SQLite as one file that several processes share, or PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from api.errors import BadRequest, DatabaseUnreachable

__all__ = ["Database", "Session", "sqlite_file"]

BUSY_TIMEOUT_MS = 30_000
"""SQLite has one writer at a time; others wait so long."""

SQLITE_CONNECTIONS = 48
"""More than requests at a time (40 threads): writers that wait for their turn must not keep readers from reading."""

CONNECT_TIMEOUT_S = 5
WRITES = "moeplan_writes"

LOST_STATES = ("08", "53", "57")
"""Classes of PostgreSQL's errors: no connection, nothing left to work with, somebody ended it."""

UNUSABLE = tuple(f"SQLITE_{name}" for name in ("BUSY", "CANTOPEN", "CORRUPT", "FULL", "IOERR", "NOTADB", "READONLY"))
"""Errors of a SQLite file itself."""


class Database:
    """Sessions on one database. One for each process; closed with :meth:`close`.

    A session of :meth:`writing` holds SQLite's write lock from its first statement, so what it reads is still true
    when it writes; a session of :meth:`reading` never waits for a writer. On PostgreSQL both are plain transactions.

    Parameters
    ----------
    url : URL
        See :attr:`api.settings.Settings.database`. The folder of a SQLite file must exist.
    pool_size : int
        Connections to PostgreSQL.
    """

    def __init__(self, url: URL, *, pool_size: int = 10) -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._engine = _sqlite_engine(url) if self.is_sqlite else _postgresql_engine(url, pool_size=pool_size)
        self._writer = self._engine.execution_options(**{WRITES: True})

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Give a session that only reads, on one consistent state."""
        with self._reachable(), Session(self._engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Give a session that is committed when the block ends, and rolled back when it raises."""
        with self._reachable(), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Give a connection in a transaction, for migrations."""
        with self._reachable(), self._writer.begin() as connection:
            yield connection

    def require_reachable(self) -> None:
        """Raise :class:`DatabaseUnreachable` unless the database answers."""
        with self.reading() as session:
            session.execute(text("SELECT 1"))

    def write_ahead(self) -> None:
        """Let SQLite's readers and its writer not wait for each other; the file remembers it."""
        if self.is_sqlite:
            with closing(sqlite3.connect(str(self.url.database), timeout=BUSY_TIMEOUT_MS / 1000)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError, InternalError) as error:
            if not _lost_connection(error):
                raise
            raise DatabaseUnreachable(f"{self.shown} does not answer: {_first_line(error)}.") from error
        except PoolTimeout as error:
            raise DatabaseUnreachable(f"{self.shown}: no connection was free for a while.") from error
        except DataError as error:  # PostgreSQL has no NUL in texts, SQLite has
            raise BadRequest(f"a value that was sent cannot be stored: {_first_line(error)}.") from error


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(
        url,
        pool_size=SQLITE_CONNECTIONS,
        max_overflow=SQLITE_CONNECTIONS,
        connect_args={"timeout": BUSY_TIMEOUT_MS / 1000},
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver at the first write
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql_engine(url: URL, *, pool_size: int) -> Engine:
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "moeplan"},
    )


def _lost_connection(error: DBAPIError) -> bool:
    """Tell a database that cannot be used from a statement that cannot be run."""
    cause: Any = error.orig
    if error.connection_invalidated:
        return True
    if isinstance(cause, sqlite3.Error):
        return str(getattr(cause, "sqlite_errorname", "")).startswith(UNUSABLE)
    state = getattr(cause, "sqlstate", None)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError)
    return state[:2] in LOST_STATES


def _first_line(error: DBAPIError) -> str:
    said = str(error.orig).strip().splitlines() or ["no reason was given"]
    return said[0].rstrip(".")


def sqlite_file(url: URL) -> Path | None:
    """Return the file of a SQLite database, None for PostgreSQL."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
