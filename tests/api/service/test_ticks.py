"""Ticks on both databases, without workers: each becomes one cycle, whoever looks, whenever and how often."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from api.errors import EngineInUse, NotFound, WrongState
from api.rebalancing.gates import Mode
from api.service import engines as engine_service
from api.service import jobs as job_service
from api.service import schedules as schedule_service
from api.service.context import Service
from api.service.ticks import begin_due
from api.states import JobKind, JobState, Outcome
from api.store import engines, jobs, schedules
from api.store.database import Session
from api.store.models import AuditEvent, Cycle, Job
from tests.api.schedules import an_engine, decisions_of, run_now, schedule_of, scheduled
from tests.api.services import ACTOR, service_on

HOURLY = {"interval_s": 3600.0}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_on(database_url, tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def engine_id(service: Service) -> str:
    return an_engine(service, "e1")


def cycles_of(service: Service) -> list[Cycle]:
    with service.database.reading() as session:
        return list(session.scalars(select(Cycle).order_by(Cycle.schedule_id, Cycle.number)))


def due_at(service: Service, schedule_id: str) -> datetime:
    found = schedule_of(service, schedule_id).next_due_at
    assert found is not None
    return found


def end_open_jobs(service: Service) -> None:
    """Let the cycles end as their jobs would when somebody cancels them."""
    with service.database.writing() as session:
        for job in session.scalars(select(Job).where(Job.state == JobState.QUEUED)).all():
            job_service.cancel(session, ACTOR, job, why="the test goes on")


def test_a_tick_becomes_one_cycle_with_its_job(service: Service, engine_id: str) -> None:
    schedule_id = scheduled(service, engine_id, times=HOURLY, mode=Mode.APPLY)
    due = due_at(service, schedule_id)
    assert begin_due(service, at=due - timedelta(microseconds=1)) == 0
    assert begin_due(service, at=due + timedelta(seconds=1)) == 1
    assert begin_due(service, at=due + timedelta(seconds=1)) == 0
    (cycle,) = cycles_of(service)
    assert (cycle.number, cycle.due_at, cycle.missed_ticks, cycle.asked) == (1, due, 0, False)
    assert cycle.settings["mode"] == "apply"
    with service.database.reading() as session:
        job = jobs.find(session, str(cycle.job_id))
    assert (job.kind, job.subject_id, job.engine_id, job.created_by) == (
        JobKind.REBALANCE, cycle.id, engine_id, f"schedule:{schedule_id}",
    )  # fmt: skip
    schedule = schedule_of(service, schedule_id)
    assert (schedule.last_tick_at, schedule.next_due_at, schedule.version) == (due, due + HOUR, 1)


def test_many_replicas_that_look_at_once_begin_a_tick_once(
    service: Service, engine_id: str, database_url: str, tmp_path: Path
) -> None:
    others = [an_engine(service, f"other {number}") for number in range(3)]
    made = [scheduled(service, each, times=HOURLY) for each in (engine_id, *others)]
    at = max(due_at(service, each) for each in made)
    with ExitStack() as stack:
        replicas = [service, *(stack.enter_context(service_on(database_url, tmp_path / "data")) for _ in range(2))]
        threads = stack.enter_context(ThreadPoolExecutor(9))
        begun = list(threads.map(lambda number: begin_due(replicas[number % 3], at=at), range(27)))
        # Who finds a row locked leaves it to the one that has it.
        assert sum(begun) == len(made)
    assert sorted((each.schedule_id, each.number) for each in cycles_of(service)) == sorted((each, 1) for each in made)


def test_missed_ticks_are_run_once_and_counted(service: Service, engine_id: str) -> None:
    schedule_id = scheduled(service, engine_id, times=HOURLY)
    due = due_at(service, schedule_id)
    assert begin_due(service, at=due + 5 * HOUR + timedelta(minutes=7)) == 1
    (cycle,) = cycles_of(service)
    assert (cycle.due_at, cycle.missed_ticks) == (due + 5 * HOUR, 5)
    schedule = schedule_of(service, schedule_id)
    assert (schedule.missed_ticks, schedule.next_due_at) == (5, due + 6 * HOUR)


def test_a_clock_that_is_put_forward_by_years_runs_one_cycle(service: Service, engine_id: str) -> None:
    schedule_id = scheduled(service, engine_id, times={"cron": "*/5 * * * *", "time_zone": "Europe/Berlin"})
    at = due_at(service, schedule_id) + 800 * DAY
    assert begin_due(service, at=at) == 1
    assert begin_due(service, at=at + timedelta(seconds=1)) == 0
    assert len(cycles_of(service)) == 1
    assert at < due_at(service, schedule_id) <= at + timedelta(minutes=5)


@pytest.mark.parametrize("times", [HOURLY, {"cron": "0 * * * *"}], ids=["interval", "cron"])
def test_a_clock_that_is_put_back_does_not_stop_a_schedule(
    service: Service, engine_id: str, times: dict[str, object]
) -> None:
    schedule_id = scheduled(service, engine_id, times=times)
    due = due_at(service, schedule_id)
    begin_due(service, at=due)
    end_open_jobs(service)
    earlier = due - DAY
    assert begin_due(service, at=earlier) == 0
    following = due_at(service, schedule_id)
    assert earlier < following <= earlier + HOUR
    assert begin_due(service, at=following) == 1
    assert due_at(service, schedule_id) <= following + HOUR


def test_a_clock_that_is_put_back_a_little_runs_nothing_twice(service: Service, engine_id: str) -> None:
    schedule_id = scheduled(service, engine_id, times={"cron": "0 * * * *"})
    due = due_at(service, schedule_id)
    begin_due(service, at=due + timedelta(seconds=1))
    end_open_jobs(service)
    for seconds in (-2, -1, 0, 2):
        assert begin_due(service, at=due + timedelta(seconds=seconds)) == 0
    assert due_at(service, schedule_id) == due + HOUR
    assert len(cycles_of(service)) == 1


def test_a_tick_while_the_cycle_before_runs_is_a_decision(service: Service, engine_id: str) -> None:
    first, second = (scheduled(service, engine_id, times=HOURLY) for _ in range(2))
    at = due_at(service, second)
    assert begin_due(service, at=at) == 2
    running, skipped = sorted(cycles_of(service), key=lambda cycle: cycle.job_id is None)
    assert {running.schedule_id, skipped.schedule_id} == {first, second}
    (decision,) = decisions_of(service)
    assert (decision.outcome, decision.code, decision.cycle_id) == (Outcome.SKIPPED, "CYCLE_RUNNING", skipped.id)
    assert decision.sentence == f"The layout stays: the cycle before is still running (job {running.job_id})."
    assert skipped.ended_at == decision.created_at
    assert schedule_of(service, skipped.schedule_id).last_success_at is None
    end_open_jobs(service)
    assert begin_due(service, at=at + HOUR) == 2


def test_a_paused_schedule_has_no_ticks_and_makes_up_for_none(service: Service, engine_id: str) -> None:
    schedule_id = scheduled(service, engine_id, times={"interval_s": 1.0})
    with service.database.writing() as session:
        schedule_service.pause(session, ACTOR, schedules.lock(session, schedule_id), why="load test")
    assert begin_due(service, at=schedule_of(service, schedule_id).starts_at + DAY) == 0
    with service.database.writing() as session, pytest.raises(WrongState, match="paused already"):
        schedule_service.pause(session, ACTOR, schedules.lock(session, schedule_id), why="")
    with service.database.writing() as session:
        before = schedules.clock(session)
        schedule_service.resume(session, ACTOR, schedules.lock(session, schedule_id), why="")
    assert before < due_at(service, schedule_id) <= before + timedelta(seconds=10)
    with service.database.writing() as session, pytest.raises(WrongState, match="not paused"):
        schedule_service.resume(session, ACTOR, schedules.lock(session, schedule_id), why="")
    assert cycles_of(service) == []
    assert audited(service, schedule_id) == ["schedule.made", "schedule.paused", "schedule.resumed"]


def test_run_now_begins_a_cycle_between_the_ticks_also_of_a_paused_schedule(service: Service, engine_id: str) -> None:
    schedule_id = scheduled(service, engine_id, paused=True)
    job = run_now(service, schedule_id)
    (cycle,) = cycles_of(service)
    assert (cycle.asked, cycle.job_id, cycle.number) == (True, job.id, 1)
    with pytest.raises(EngineInUse, match=job.id):
        run_now(service, schedule_id)
    assert len(cycles_of(service)) == 1
    assert schedule_of(service, schedule_id).next_due_at is None


def test_a_schedule_that_cannot_be_followed_does_not_stop_the_others(service: Service, engine_id: str) -> None:
    broken, fine = (
        scheduled(service, engine_id, times=HOURLY),
        scheduled(service, an_engine(service, "e2"), times=HOURLY),
    )
    with service.database.writing() as session:
        schedules.lock(session, broken).time_zone = "Europe/Atlantis"
    assert begin_due(service, at=due_at(service, fine)) == 1
    assert [each.schedule_id for each in cycles_of(service)] == [fine]


def test_changed_times_count_from_now_and_other_changes_leave_the_next_tick(service: Service, engine_id: str) -> None:
    schedule_id = scheduled(service, engine_id, times=HOURLY)
    due = due_at(service, schedule_id)
    change(service, schedule_id, mode=Mode.APPLY)
    assert due_at(service, schedule_id) == due
    change(service, schedule_id, cron="0 0 1 1 *")
    schedule = schedule_of(service, schedule_id)
    assert (schedule.interval_s, schedule.cron, schedule.version) == (None, "0 0 1 1 *", 3)
    assert due_at(service, schedule_id).strftime("%m-%d %H:%M") == "01-01 00:00"


def test_a_removed_engine_takes_its_schedules_along(service: Service, engine_id: str) -> None:
    schedule_id = scheduled(service, engine_id, times=HOURLY)
    due = due_at(service, schedule_id)
    with service.database.writing() as session:
        engine_service.remove(session, ACTOR, engines.find(session, engine_id), why="gone")
    with service.database.reading() as session, pytest.raises(NotFound):
        schedules.find(session, schedule_id)
    assert begin_due(service, at=due) == 0
    assert audited(service, schedule_id)[-1] == "schedule.removed"


def test_a_cancelled_cycle_ends_in_a_decision(service: Service, engine_id: str) -> None:
    job = run_now(service, scheduled(service, engine_id))
    end_open_jobs(service)
    (decision,) = decisions_of(service)
    assert (decision.outcome, decision.code, decision.job_id) == (Outcome.SKIPPED, "CYCLE_CANCELLED", job.id)


def change(service: Service, schedule_id: str, **changes: object) -> None:
    with service.database.writing() as session:
        schedule_service.change(session, ACTOR, schedules.lock(session, schedule_id), changes)


def audited(service: Service, subject_id: str) -> list[str]:
    with service.database.reading() as session:
        return actions_of(session, subject_id)


def actions_of(session: Session, subject_id: str) -> list[str]:
    query = select(AuditEvent.action).where(AuditEvent.subject_id == subject_id).order_by(AuditEvent.number)
    return list(session.scalars(query))
