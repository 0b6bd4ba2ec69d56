"""Rebalancing cycles on real workers against the replay engine: each ends in one decision."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api.rebalancing.gates import Mode
from api.service.context import Service
from api.states import Outcome, PlanState, RolloutState, TraceState
from api.store import plans, traces
from profiler.engine.client import EngineClient
from tests.api.schedules import OPEN, decided, register, run_now, schedule_of, scheduled
from tests.api.services import WorkerProcess, replay_engine, service_on, succeeded


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_on(database_url, tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def sqlite_service(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Service]:
    """For what does not depend on the database."""
    file = tmp_path / "moeplan.db"
    shutil.copy(migrated_sqlite, file)
    with service_on(f"sqlite:///{file}", tmp_path / "data") as opened:
        yield opened


def test_a_plan_is_applied_and_kept_and_then_there_is_nothing_to_do(service: Service) -> None:
    with replay_engine() as url, WorkerProcess(service.settings, "w1"), EngineClient(url) as client:
        engine_id = register(service, url)
        before = client.placement()
        gates = replace(OPEN, least_gain=0.05)
        schedule_id = scheduled(service, engine_id, mode=Mode.APPLY, gates=gates)
        applied = decided(service, succeeded(service.database, run_now(service, schedule_id).id).id)
        after = client.placement()
        nothing = decided(service, succeeded(service.database, run_now(service, schedule_id).id).id)
        assert client.placement().layout_hash == after.layout_hash

    assert applied.outcome is Outcome.APPLIED, applied.sentence
    assert after.layout_hash != before.layout_hash
    with service.database.reading() as session:
        plan = plans.find(session, str(applied.plan_id))
        rollout = plans.find_rollout(session, str(applied.rollout_id))
        assert traces.find(session, str(applied.trace_id)).state is TraceState.READY
    assert (plan.state, plan.layout_hash) == (PlanState.APPROVED, after.layout_hash)
    assert (rollout.state, rollout.plan_id) == (RolloutState.APPLIED, plan.id)
    numbers = applied.numbers
    assert numbers["gain"] == pytest.approx(numbers["planned"] - numbers["before"])
    assert numbers["planned"] > numbers["before"] > 0
    assert numbers["moved_slots"] > 0
    assert all(gate["open"] for gate in numbers["gates"])
    assert numbers["drift"]["mean"] is None

    assert nothing.outcome is Outcome.NOTHING, nothing.sentence
    assert nothing.numbers["drift"]["running_plan_id"] == plan.id
    assert nothing.rollout_id is None
    assert schedule_of(service, schedule_id).last_success_at == nothing.created_at
