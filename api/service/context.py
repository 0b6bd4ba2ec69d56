"""What every part of the service needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from api.jobs import durable
from api.service.key_uses import KeyUses
from api.settings import Settings
from api.store.database import Database
from api.store.files import FileStore
from api.store.migrate import is_new, make_folder, require_current, upgrade
from api.store.object_files import open_files


@dataclass(frozen=True)
class Service:
    """The service's state: opened once in each process, handed to whoever needs it.

    Attributes
    ----------
    settings : Settings
    database : Database
    files : FileStore
        Recordings, plans and layouts, by content.
    queue : JobQueue
    key_uses : KeyUses
    """

    settings: Settings
    database: Database
    files: FileStore
    queue: durable.JobQueue
    key_uses: KeyUses


@contextmanager
def open_service(settings: Settings) -> Iterator[Service]:
    """Open database, files and queue; a SQLite database that does not exist yet is made.

    Raises
    ------
    DatabaseUnreachable, DatabaseOutdated, DatabaseTooNew
        Saying what to do.
    """
    database = Database(settings.database)
    try:
        if database.is_sqlite:
            make_folder(database)
            if is_new(database):
                upgrade(database)
                durable.upgrade(settings.database)
        require_current(database)
        files = open_files(settings.data_dir, settings.files_url)
        queue, key_uses = durable.JobQueue(settings.database), KeyUses(database)
        try:
            yield Service(settings, database, files, queue, key_uses)
        finally:
            key_uses.close()
            queue.close()
    finally:
        database.close()
