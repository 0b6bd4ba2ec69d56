"""The clock of schedules: every worker looks, and each tick is begun by one of them (:mod:`api.service.ticks`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy.exc import SQLAlchemyError

from api.service.context import Service
from api.service.ticks import begin_due
from placement.errors import CodedError

EVERY_S = 0.5

log = structlog.get_logger("moeplan.schedules")


@contextmanager
def ticking(service: Service, *, every_s: float = EVERY_S) -> Iterator[None]:
    """Begin cycles as they come due while the block runs."""
    stopping = threading.Event()
    clock = threading.Thread(target=_tick, args=(service, stopping, every_s), name="schedules", daemon=True)
    clock.start()
    try:
        yield
    finally:
        stopping.set()
        clock.join()


def _tick(service: Service, stopping: threading.Event, every_s: float) -> None:
    while not stopping.wait(every_s):
        try:
            begin_due(service)
        except CodedError as error:
            log.warning("schedules wait for the database", code=error.code, detail=error.detail)
        except SQLAlchemyError:
            log.exception("schedules wait")  # say a deadlock: the tick is still due, and is begun the next time
