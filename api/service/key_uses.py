"""When keys were last used, written beside the requests: a read never waits for a writer of the database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import structlog

from api.store import keys
from api.store.database import Database
from placement.errors import CodedError

log = structlog.get_logger("moeplan.keys")


class KeyUses:
    """Writes uses of keys down from one thread; a key that waits to be written is not queued again.

    While a SQLite database is being written to, every request would else wait for the same line: that of its key.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="moeplan-key-uses")
        self._waiting: set[str] = set()
        self._lock = threading.Lock()

    def note(self, key_id: str, at: datetime) -> None:
        """Have a use written down soon; never waits."""
        with self._lock:
            if key_id in self._waiting:
                return
            self._waiting.add(key_id)
        self._writer.submit(self._write, key_id, at)

    def close(self) -> None:
        """Write what waits, and end."""
        self._writer.shutdown(wait=True)

    def _write(self, key_id: str, at: datetime) -> None:
        try:
            with self._database.writing() as session:
                keys.used(session, key_id, at)
        except CodedError as error:
            log.warning("use of a key was not written down", code=error.code, detail=error.detail)
        finally:
            with self._lock:
                self._waiting.discard(key_id)
