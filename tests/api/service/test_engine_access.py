"""Reaching engines: tried again with growing pauses and jitter, and left alone after failures in a row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from api.errors import EngineResting
from api.service import engine_access
from api.service import engines as engine_service
from api.service.context import Service
from api.service.engine_access import engine_client, require_rested, with_retries
from api.store import engines
from api.store.columns import now
from api.store.models import Engine
from profiler.errors import EngineRefused, EngineUnreachable
from tests.api.services import ACTOR, replay_engine, service_on


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with service_on(f"sqlite:///{tmp_path}/moeplan.db", tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(engine_access.time, "sleep", made.append)
    return made


class Flaky:
    """Fails a number of times."""

    def __init__(self, failures: int, error: type[Exception] = EngineUnreachable) -> None:
        self.left, self.error, self.calls = failures, error, 0

    def __call__(self) -> str:
        self.calls += 1
        self.left -= 1
        if self.left >= 0:
            raise self.error("it did not")
        return "answer"


def registered(service: Service, url: str) -> Engine:
    with service.database.writing() as session:
        return engine_service.register(
            session, ACTOR, name="e", url=url, key_reference=None, read_key_reference=None, labels={}, costs=None
        )


def current(service: Service, engine: Engine) -> Engine:
    with service.database.reading() as session:
        return engines.find(session, engine.id)


def test_reading_is_tried_again_after_growing_pauses(pauses: list[float]) -> None:
    assert with_retries(Flaky(2)) == "answer"
    first, second = pauses
    assert 0.5 * engine_access.FIRST_PAUSE_S <= first <= 1.5 * engine_access.FIRST_PAUSE_S
    assert engine_access.FIRST_PAUSE_S <= second <= 3 * engine_access.FIRST_PAUSE_S


def test_pauses_of_two_readers_differ(pauses: list[float]) -> None:
    for _ in range(20):
        with_retries(Flaky(1))
    assert len(set(pauses)) > 10


def test_it_is_not_tried_for_ever_and_a_refusal_not_again(pauses: list[float]) -> None:
    flaky, refusing = Flaky(100), Flaky(100, EngineRefused)
    with pytest.raises(EngineUnreachable):
        with_retries(flaky)
    with pytest.raises(EngineRefused):
        with_retries(refusing)
    assert (flaky.calls, refusing.calls) == (engine_access.ATTEMPTS, 1)


def test_an_engine_that_failed_again_and_again_is_not_asked(service: Service) -> None:
    engine = registered(service, "http://127.0.0.1:9")
    for _ in range(engine_access.FAILURES_BEFORE_REST):
        with pytest.raises(EngineUnreachable), engine_client(service, current(service, engine)) as client:
            client.placement()
    resting = current(service, engine)
    assert resting.resting_until is not None
    assert resting.resting_until > now()
    with pytest.raises(EngineResting, match="left alone until"), engine_client(service, resting):
        pytest.fail("it was asked")


def test_a_clock_that_is_put_back_does_not_keep_an_engine_resting(service: Service) -> None:
    engine = registered(service, "http://127.0.0.1:9")
    engine.failures_in_row, engine.resting_until = 3, now() + timedelta(seconds=200)
    with pytest.raises(EngineResting):
        require_rested(engine)
    engine.resting_until = now() + timedelta(hours=3)
    require_rested(engine)


def test_one_answer_ends_the_count(service: Service) -> None:
    with replay_engine() as url:
        engine = registered(service, "http://127.0.0.1:9")
        with pytest.raises(EngineUnreachable), engine_client(service, current(service, engine)) as client:
            client.placement()
        assert current(service, engine).failures_in_row == 1
        with service.database.writing() as session:
            engines.find(session, engine.id).url = url
        with engine_client(service, current(service, engine)) as client:
            client.placement()
    assert current(service, engine).failures_in_row == 0
