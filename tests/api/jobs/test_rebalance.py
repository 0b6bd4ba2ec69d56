"""Rebalancing cycles on real workers, which follow the clock, die, and take over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from api.rebalancing.gates import Mode
from api.rebalancing.hours import DAYS, Hours
from api.service.context import Service
from api.states import Outcome, PlanState, RolloutState, TraceState
from api.store import plans, schedules, traces
from api.store.models import Trace
from api.store.pages import Paging
from profiler.engine.client import EngineClient
from tests.api.schedules import OPEN, an_engine, decided, decisions_of, register, run_now, schedule_of, scheduled
from tests.api.services import WorkerProcess, replay_engine, service_on, succeeded, wait_for

pytestmark = pytest.mark.one_database


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
        # Long enough that two recordings hold the same traffic: on short ones a second plan gains from the other part.
        gates, capture = replace(OPEN, least_gain=0.05), {"steps": 240, "window_steps": 40}
        schedule_id = scheduled(service, engine_id, mode=Mode.APPLY, gates=gates, capture=capture)
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


def test_a_worker_follows_the_clock_and_makes_up_for_missed_ticks_once(service: Service) -> None:
    with service.database.reading() as session:
        at = schedules.clock(session)
    closed = Hours((DAYS[(at.weekday() + 3) % 7],), "00:00", "00:01")
    gates = replace(OPEN, maintenance_hours=(closed,))
    schedule_id = scheduled(service, an_engine(service, "e1"), times={"interval_s": 3600.0}, gates=gates)
    with service.database.writing() as session:
        schedule = schedules.lock(session, schedule_id)
        schedule.starts_at = at - timedelta(hours=6, minutes=30)
        schedule.next_due_at = at - timedelta(hours=5, minutes=30)
    with WorkerProcess(service.settings, "w1"), WorkerProcess(service.settings, "w2"):
        (decision,) = wait_for(lambda: decisions_of(service), what="the decision")
        schedule = schedule_of(service, schedule_id)
    assert (decision.code, decision.numbers["missed_ticks"]) == ("OUTSIDE_MAINTENANCE_HOURS", 5)
    assert (schedule.cycles, schedule.missed_ticks) == (1, 5)
    assert schedule.next_due_at == at + timedelta(minutes=30)


@pytest.mark.thorough
def test_a_cycle_whose_worker_is_killed_after_recording_is_decided_by_another_from_that_recording(
    sqlite_service: Service,
) -> None:
    service = sqlite_service
    with replay_engine() as url:
        schedule_id = scheduled(service, register(service, url))
        with WorkerProcess(service.settings, "w1") as first:
            job_id = run_now(service, schedule_id).id
            (trace,) = wait_for(lambda: ready_traces(service), what="the recording")
            first.kill()
        with WorkerProcess(service.settings, "w2"):
            job = succeeded(service.database, job_id)
    decision = decided(service, job_id)
    assert (job.attempts, job.worker) == (2, "w2")
    assert decision.outcome is Outcome.PROPOSED, decision.sentence
    assert decision.trace_id == trace.id
    assert [each.id for each in ready_traces(service)] == [trace.id]


def ready_traces(service: Service) -> list[Trace]:
    with service.database.reading() as session:
        return [each for each in traces.page(session, Paging(10)).rows if each.state is TraceState.READY]
