"""Reaching engines: the right key, limits of time, retries with jitter, and leaving a failing one alone for a while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from api.errors import EngineResting
from api.service.context import Service
from api.service.secret_references import follow
from api.states import EngineState
from api.store import engines
from api.store.columns import iso, now
from api.store.models import Engine
from placement.errors import CodedError
from profiler.engine.client import EngineClient
from profiler.errors import EngineFailed, EngineUnreachable

Result = TypeVar("Result")

ATTEMPTS = 3
FIRST_PAUSE_S = 0.4

FAILURES_BEFORE_REST = 3
FIRST_REST_S = 5.0
LONGEST_REST_S = 300.0


@contextmanager
def engine_client(service: Service, engine: Engine) -> Iterator[EngineClient]:
    """Give a client of an engine, unless it is resting; how it went is written down.

    Raises
    ------
    EngineResting
        It failed several times in a row; with the time until which it is left alone.
    SecretMissing
    EngineError
        As the client.
    """
    require_rested(engine)
    key, read_key = follow(engine.key_reference), follow(engine.read_key_reference)
    try:
        with EngineClient(engine.url, key, read_key=read_key, timeout_s=service.settings.engine_timeout_s) as client:
            yield client
    except (EngineUnreachable, EngineFailed) as error:
        _note_failure(service, engine.id, error)
        raise
    _note_success(service, engine.id)


def require_rested(engine: Engine) -> None:
    """Raise :class:`EngineResting` while an engine is left alone."""
    if engine.resting_until is not None and engine.resting_until > now():
        raise EngineResting(
            f"{engine.url} failed {engine.failures_in_row} times in a row and is left alone until "
            f"{iso(engine.resting_until)}; reading it by hand tries at once."
        )


def with_retries(action: Callable[[], Result], *, attempts: int = ATTEMPTS) -> Result:
    """Try an action that changes nothing again when the engine does not answer, after growing pauses with jitter."""
    for attempt in range(1, attempts):
        try:
            return action()
        except EngineUnreachable:
            time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
    return action()


def _note_failure(service: Service, engine_id: str, error: CodedError) -> None:
    with service.database.writing() as session:
        engine = engines.find(session, engine_id)
        engine.failures_in_row += 1
        engine.failures += 1
        engine.state = EngineState.UNREACHABLE
        engine.error = {"code": error.code, "detail": error.detail}
        beyond = engine.failures_in_row - FAILURES_BEFORE_REST
        if beyond >= 0:
            rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(beyond, 16)) * random.uniform(0.8, 1.2)
            engine.resting_until = now() + timedelta(seconds=rest_s)


def _note_success(service: Service, engine_id: str) -> None:
    with service.database.reading() as session:
        engine = engines.find(session, engine_id)
        nothing_to_say = engine.failures_in_row == 0 and engine.resting_until is None
    if nothing_to_say:
        return
    with service.database.writing() as session:
        engine = engines.find(session, engine_id)
        engine.failures_in_row = 0
        engine.resting_until = None
