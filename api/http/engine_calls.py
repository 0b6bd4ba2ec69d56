"""Requests that wait for an engine, which may answer late or never: a few at a time, so that others are answered."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors import EngineCallsFull

MOST = 8
"""Of the 40 threads that answer requests."""

MOST_OF_ONE = 2
"""Of one engine, so that one which does not answer leaves room for the others."""


class EngineCalls:
    """Counts the requests that wait for engines.

    Parameters
    ----------
    most, most_of_one
        At a time, of all engines and of each.
    """

    def __init__(self, *, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def waiting_for(self, engine: str) -> Iterator[None]:
        """Hold a place while the block waits for an engine (its id, or its URL before it has one).

        Raises
        ------
        EngineCallsFull
            At once: what cannot be done now is better asked again than queued.
        """
        with self._lock:
            total, of_one = self._waiting.total(), self._waiting[engine]
            if of_one >= self._most_of_one:
                raise EngineCallsFull(f"{of_one} requests wait for this engine already; ask again in a while.")
            if total >= self._most:
                raise EngineCallsFull(f"{total} requests wait for engines already; ask again in a while.")
            self._waiting[engine] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[engine] -= 1
                if not self._waiting[engine]:
                    del self._waiting[engine]
