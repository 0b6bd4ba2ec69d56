"""Reaching engines: the right key, limits of time, retries with jitter, and leaving a failing one alone for a while.

An engine that does not answer as it should, three times in a row, is not asked for a while, and for longer after each
failure more. What counts is what was being done: that an engine can be read does not make up for recordings that fail.
One that failed last time is first asked for something that costs it nothing: so a dead one is found out in seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from api.errors import DatabaseUnreachable, EngineResting
from api.service.context import Service
from api.service.secret_references import follow
from api.states import EngineState
from api.store import engines
from api.store.columns import iso, now
from api.store.models import Engine
from profiler.engine.client import EngineClient
from profiler.engine.contract import ABILITIES
from profiler.errors import EngineAnswerInvalid, EngineFailed, EngineUnreachable

Result = TypeVar("Result")

log = structlog.get_logger("moeplan.engines")

ATTEMPTS = 3
FIRST_PAUSE_S = 0.4
RETRIED_FOR_S = 30.0
"""Nothing is tried again after so long: what waited for its whole time was no connection that broke."""

FAILURES_BEFORE_REST = 3
FIRST_REST_S = 5.0
LONGEST_REST_S = 300.0

FAILURES = (EngineUnreachable, EngineFailed, EngineAnswerInvalid)
FAILURE_CODES = tuple(failure.code for failure in FAILURES)
"""Errors that are the engine's own: it does not answer, fails, or answers what nobody can use."""

READING, RECORDING = "reading", "recording"
"""What is done with an engine, for what counts as a success after a failure."""


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
            if engine.failures_in_row:
                client.require_answering()
            yield client
    except FAILURES as error:
        note_failure(service, engine.id, code=error.code, detail=error.detail)
        raise
    note_success(service, engine.id)


def require_rested(engine: Engine) -> None:
    """Raise :class:`EngineResting` while an engine is left alone."""
    left_s = 0.0 if engine.resting_until is None else (engine.resting_until - now()).total_seconds()
    if 0.0 < left_s <= 2 * LONGEST_REST_S:  # no rest is longer: the clock was put back
        raise EngineResting(
            f"{engine.url} failed {engine.failures_in_row} times in a row and is left alone until "
            f"{iso(engine.resting_until)}; reading it by hand tries at once."
        )


def with_retries(action: Callable[[], Result], *, attempts: int = ATTEMPTS, longest_s: float = RETRIED_FOR_S) -> Result:
    """Try an action that changes nothing again when the engine does not answer, after growing pauses with jitter."""
    until_s = time.monotonic() + longest_s
    for attempt in range(1, attempts):
        try:
            return action()
        except EngineUnreachable:
            pause_s = FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
            if time.monotonic() + pause_s >= until_s:
                raise
            time.sleep(pause_s)
    return action()


def note_failure(service: Service, engine_id: str, *, code: str, detail: str, during: str = READING) -> None:
    """Write down that an engine did not answer as it should (one of :data:`FAILURE_CODES`), and let it rest."""
    with _unless_database_is_away(engine_id), service.database.writing() as session:
        engine = engines.find(session, engine_id)
        engine.failures_in_row += 1
        engine.failures += 1
        answered = code == EngineAnswerInvalid.code
        engine.state = EngineState.LIMITED if answered else EngineState.UNREACHABLE
        engine.error = {"code": code, "detail": detail, "during": during}
        beyond = engine.failures_in_row - FAILURES_BEFORE_REST
        if beyond >= 0:
            rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(beyond, 16)) * random.uniform(0.8, 1.2)
            engine.resting_until = now() + timedelta(seconds=rest_s)


def note_success(service: Service, engine_id: str, *, during: str = READING) -> None:
    """Write down that an engine did as it should; a failure at something else is not made up for by that."""
    with _unless_database_is_away(engine_id):
        with service.database.reading() as session:
            if not _is_news(engines.find(session, engine_id), during):
                return
        with service.database.writing() as session:
            engine = engines.find(session, engine_id)
            if _is_news(engine, during):
                engine.failures_in_row, engine.resting_until = 0, None
                engine.state, engine.error = state_as_read(engine.facts), None


def state_as_read(facts: Mapping[str, Any] | None) -> EngineState:
    """Return the state of an engine that answers, by what was last read of it."""
    if facts is None:
        return EngineState.UNKNOWN
    abilities = facts.get("abilities", {})
    works = all(abilities.get(name, {}).get("works") for name in ABILITIES)
    return EngineState.READY if works else EngineState.LIMITED


@contextmanager
def _unless_database_is_away(engine_id: str) -> Iterator[None]:
    """Let what was got from an engine not be lost because a note about it cannot be made."""
    try:
        yield
    except DatabaseUnreachable as error:
        log.warning("how an engine answered is not written down", engine=engine_id, detail=error.detail)


def _is_news(engine: Engine, during: str) -> bool:
    if engine.failures_in_row == 0 and engine.resting_until is None:
        return False
    failed = (engine.error or {}).get("during", READING)
    return during == RECORDING or failed == during
