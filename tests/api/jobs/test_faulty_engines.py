"""Engines that misbehave: what the decision of a cycle says, and that they are left alone for a while, visibly."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from api.http.state_metrics import StateCollector
from api.rebalancing.gates import Mode
from api.service import engine_access
from api.service import engines as engine_service
from api.service.context import Service
from api.states import EngineState, Outcome, RolloutState
from api.store import engines, plans
from api.store.columns import now
from api.store.models import Decision, Engine
from profiler.engine.client import EngineClient
from profiler.replay.options import Faults
from tests.api.jobs.by_hand import Memory, attempt, tasks_here  # noqa: F401  (fixture)
from tests.api.schedules import OPEN, decided, register, run_now, scheduled
from tests.api.services import service_on
from tests.bench.support.engine_faults import ENGINE_FAULTS, EngineFault
from tests.bench.support.many_engines import HostedEngine, many_engines
from tests.faulty_engine import FaultyEngine, faulty_engine

pytestmark = pytest.mark.usefixtures("tasks_here")

HARD_TO_PLEASE = replace(OPEN, least_tokens=10**9)
"""Gates that end a cycle once it has recorded."""


@pytest.fixture
def service(migrated_sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(engine_access, "FIRST_PAUSE_S", 0.01)
    file = tmp_path / "moeplan.db"
    shutil.copy(migrated_sqlite, file)
    with service_on(f"sqlite:///{file}", tmp_path / "data") as opened:
        object.__setattr__(opened.settings, "engine_timeout_s", 30.0)
        yield opened


@pytest.fixture
def engine() -> Iterator[HostedEngine]:
    with many_engines(1, steps_per_s=400.0) as (only,):
        yield only


def cycle(service: Service, schedule_id: str) -> Decision:
    job = run_now(service, schedule_id)
    assert attempt(service, job.id, Memory())
    return decided(service, job.id)


def row(service: Service, engine_id: str) -> Engine:
    with service.database.reading() as session:
        return engines.find(session, engine_id)


def resting(service: Service) -> tuple[float | None, float | None, float | None]:
    """What ``/metrics`` says: whether the engine is up, is left alone, and its failures in a row."""
    registry = CollectorRegistry()
    registry.register(StateCollector(service))
    labels = {"engine": "replay"}
    up, rests, in_row = (
        registry.get_sample_value(f"moeplan_{name}", labels)
        for name in ("engine_up", "engine_resting", "engine_failures_in_row")
    )
    return up, rests, in_row


def rested(service: Service, engine_id: str) -> None:
    """Let the time be over for which the engine is left alone."""
    with service.database.writing() as session:
        engines.find(session, engine_id).resting_until = now() - timedelta(seconds=1)


def behind(service: Service, front: FaultyEngine, **changes: Any) -> tuple[str, str]:
    engine_id = register(service, front.url)
    return engine_id, scheduled(service, engine_id, **changes)


def begin(service: Service, front: FaultyEngine, engine: HostedEngine, fault: EngineFault) -> None:
    """Let an engine misbehave from now on, and have no more patience with it than shows it."""
    front.fault, front.only = fault.make(engine), fault.only
    object.__setattr__(service.settings, "engine_timeout_s", fault.limit_s)


@pytest.mark.parametrize("name", ENGINE_FAULTS)
def test_the_decision_says_what_is_wrong_and_nothing_is_pushed(
    service: Service, engine: HostedEngine, name: str
) -> None:
    fault = ENGINE_FAULTS[name]
    with faulty_engine(engine.url, None) as front, EngineClient(engine.url) as client:
        engine_id, schedule_id = behind(service, front, mode=Mode.APPLY)
        begin(service, front, engine, fault)
        decision = cycle(service, schedule_id)
        assert client.replayed_pushes() == []
    assert (decision.outcome, decision.code) == (fault.expected.outcome, fault.expected.code)
    assert fault.expected.says in decision.sentence
    seen = row(service, engine_id)
    assert (seen.failures, seen.failures_in_row) == (int(fault.expected.rests),) * 2
    assert (seen.state is EngineState.READY) is not fault.expected.rests


@pytest.mark.parametrize("name", ["half-open: never answers", "half-open in recordings only", "garbage"])
def test_after_failures_in_a_row_it_is_left_alone_until_it_answers_again(
    service: Service, engine: HostedEngine, name: str
) -> None:
    fault = ENGINE_FAULTS[name]
    with faulty_engine(engine.url, None) as front:
        engine_id, schedule_id = behind(service, front, gates=HARD_TO_PLEASE)
        assert resting(service) == (1.0, 0.0, 0.0)
        begin(service, front, engine, fault)
        for number in range(engine_access.FAILURES_BEFORE_REST):
            assert cycle(service, schedule_id).code == fault.expected.code
            assert row(service, engine_id).failures_in_row == number + 1
        answers = fault.expected.code == "ENGINE_ANSWER_INVALID"
        assert resting(service) == (float(answers), 1.0, engine_access.FAILURES_BEFORE_REST)
        front.asked.clear()
        left_alone = cycle(service, schedule_id)
        assert (left_alone.outcome, left_alone.code) == (Outcome.FAILED, "ENGINE_RESTING")
        assert "is left alone until" in left_alone.sentence
        assert front.asked == []

        rested(service, engine_id)  # once more in vain, and the rest is longer
        before = row(service, engine_id).failures_in_row
        assert cycle(service, schedule_id).code == fault.expected.code
        assert row(service, engine_id).failures_in_row == before + 1

        front.fault = None
        rested(service, engine_id)
        object.__setattr__(service.settings, "engine_timeout_s", 30.0)
        assert cycle(service, schedule_id).code == "TOO_FEW_TOKENS"
        assert resting(service) == (1.0, 0.0, 0.0)
        assert row(service, engine_id).error is None


def test_one_that_failed_is_first_asked_for_what_costs_it_nothing(service: Service, engine: HostedEngine) -> None:
    with faulty_engine(engine.url, None) as front:
        _, schedule_id = behind(service, front)
        begin(service, front, engine, ENGINE_FAULTS["half-open: never answers"])
        cycle(service, schedule_id)
        front.asked.clear()
        cycle(service, schedule_id)
        assert set(front.asked) == {"GET /model_info"}


def test_reading_by_hand_closes_the_circuit(service: Service, engine: HostedEngine) -> None:
    with faulty_engine(engine.url, None) as front:
        engine_id, schedule_id = behind(service, front)
        begin(service, front, engine, ENGINE_FAULTS["garbage in recordings only"])
        for _ in range(engine_access.FAILURES_BEFORE_REST):
            cycle(service, schedule_id)
        assert resting(service)[1] == 1.0
        engine_service.read(service, engine_id)
        assert resting(service) == (1.0, 0.0, 0.0)


def test_an_engine_that_is_started_anew_while_it_is_pushed_to_is_left_alone(service: Service) -> None:
    with many_engines(1, steps_per_s=400.0, faults=Faults(restart_chunk=2)) as (engine,):
        pace = {"measure_seconds": 0.0, "layers_per_chunk": 1}
        schedule_id = scheduled(service, register(service, engine.url), mode=Mode.APPLY, rollout=pace)
        first = cycle(service, schedule_id)
    assert (first.outcome, first.code) == (Outcome.FAILED, "ENGINE_RESTARTED")
    assert "was started anew" in first.sentence
    with service.database.reading() as session:
        assert plans.find_rollout(session, str(first.rollout_id)).state is RolloutState.SUPERSEDED
