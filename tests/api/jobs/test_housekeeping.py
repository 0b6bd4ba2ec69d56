"""Retention and what is removed with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.jobs import housekeeping
from api.jobs.housekeeping import tidy_up
from api.jobs.plan_work import checkpoint_folder
from api.service import jobs as job_service
from api.service.context import Service
from api.service.decisions import conclude
from api.states import JobKind, JobState, Outcome, PlanState, TraceState
from api.store import audit, decisions, jobs, schedules, traces
from api.store.audit import Actor, change_state
from api.store.columns import now
from api.store.identifiers import first_id_of, new_id
from api.store.models import AuditEvent, Cycle, Decision, IdempotentAnswer, Job, JobEvent, Plan, PlanTrace, Trace
from api.store.pages import Paging
from tests.api.jobs.test_jobs import upload
from tests.api.schedules import an_engine, scheduled
from tests.api.services import job_of, plan_for_replay, ready_plan, ready_trace, service_on


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_on(database_url, tmp_path / "data") as opened:
        yield opened


def with_retention(service: Service, content: bytes, *, kept: bool, days_left: float) -> str:
    trace_id = ready_trace(service, content)
    with service.database.writing() as session:
        trace = session.get_one(Trace, trace_id)
        trace.kept, trace.expires_at = kept, now() + timedelta(days=days_left)
    return trace_id


def test_recordings_expire_with_their_data_unless_they_are_kept(service: Service) -> None:
    over = with_retention(service, b"over", kept=False, days_left=-1)
    kept = with_retention(service, b"kept", kept=True, days_left=-1)
    fresh = with_retention(service, b"fresh", kept=False, days_left=1)
    tidy_up(service, young_s=-1.0)
    with service.database.reading() as session:
        states = [traces.find(session, trace_id).state for trace_id in (over, kept, fresh)]
        (event,) = audit.events(session, subject_id=over, paging=Paging(5)).rows
    assert states == [TraceState.EXPIRED, TraceState.READY, TraceState.READY]
    assert (event.who, event.why) == ("service:retention", "its time of retention is over")
    assert len(list(service.files.stored())) == 2


def test_a_file_is_removed_with_the_last_thing_that_needs_it(service: Service) -> None:
    with_retention(service, b"shared", kept=False, days_left=-1)
    with_retention(service, b"shared", kept=False, days_left=1)
    tidy_up(service, young_s=-1.0)
    assert len(list(service.files.stored())) == 1


def test_files_that_may_be_about_to_be_needed_are_left(service: Service) -> None:
    service.files.put_bytes(b"the row comes in a moment")
    upload(service, b"waits for its job", "counts.json")
    tidy_up(service)
    assert len(list(service.files.stored())) == 2
    tidy_up(service, young_s=-1.0)
    assert len(list(service.files.stored())) == 1


def test_finished_layers_go_when_their_job_has_ended(service: Service) -> None:
    _, open_job = upload(service, b"x", "counts.json")
    assert job_of(service.database, open_job).state is JobState.QUEUED
    folders = [checkpoint_folder(service.settings.data_dir, job_id) for job_id in (open_job, "job_of_nobody")]
    for folder in folders:
        folder.mkdir(parents=True)
    tidy_up(service)
    assert [folder.exists() for folder in folders] == [True, False]


def ended_job(service: Service, name: str, *, days_ago: float) -> str:
    """A job that was cancelled so long ago, with its events."""
    _, job_id = upload(service, name.encode(), f"{name}.json")
    at = now() - timedelta(days=days_ago)
    with service.database.writing() as session:
        job_service.cancel(session, Actor("key:tester"), jobs.lock(session, job_id), why="not needed")
        session.flush()
        session.execute(sa.update(Job).where(Job.id == job_id).values(ended_at=at))
        session.execute(sa.update(JobEvent).where(JobEvent.job_id == job_id).values(at=at))
    return job_id


def steps_kept(service: Service) -> set[str]:
    """Jobs that the queue still knows."""
    table = "workflow_status" if service.database.is_sqlite else "dbos.workflow_status"
    with service.database.reading() as session:
        return set(session.scalars(sa.text(f"SELECT workflow_uuid FROM {table}")))


def test_steps_of_jobs_are_forgotten_when_their_time_is_over(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "JOBS_AT_A_TIME", 2)
    old = [ended_job(service, f"old{number}", days_ago=31) for number in range(3)]
    new = ended_job(service, "new", days_ago=29)
    _, still_open = upload(service, b"open", "open.json")
    with service.database.writing() as session:
        session.execute(sa.update(JobEvent).where(JobEvent.job_id == still_open).values(at=now() - timedelta(days=99)))
    tidy_up(service)
    with service.database.reading() as session:
        assert set(session.scalars(sa.select(JobEvent.job_id))) == {new, still_open}
        assert jobs.find(session, old[0]).state is JobState.CANCELLED
    assert steps_kept(service) == {new, still_open}
    tidy_up(service)


def test_the_audit_log_is_kept_for_its_time(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "ROWS_AT_A_TIME", 3)
    for number in range(3):
        upload(service, str(number).encode(), f"{number}.json")
    with service.database.writing() as session:
        numbers = session.scalars(sa.select(AuditEvent.number).order_by(AuditEvent.number)).all()
        over = now() - timedelta(days=731)
        session.execute(sa.update(AuditEvent).where(AuditEvent.number <= numbers[3]).values(at=over))
    tidy_up(service)
    with service.database.reading() as session:
        assert session.scalars(sa.select(AuditEvent.number).order_by(AuditEvent.number)).all() == numbers[4:]


def test_answers_to_repeated_requests_are_kept_for_a_day(service: Service) -> None:
    with service.database.writing() as session:
        for key, hours in (("old", 25), ("new", 23)):
            session.add(
                IdempotentAnswer(
                    who="w", key=key, request_sha256="", status=200, headers={}, body=b"",
                    created_at=now() - timedelta(hours=hours),
                )
            )  # fmt: skip
    tidy_up(service)
    with service.database.reading() as session:
        assert session.scalars(sa.select(IdempotentAnswer.key)).all() == ["new"]


def old_decision(
    service: Service, schedule_id: str, number: int, *, days_ago: float, plan: PlanState | None = None
) -> Decision:
    """A decision that was made so long ago, with its cycle, job and recording, and a plan where a state is given."""
    at = now() - timedelta(days=days_ago)
    trace_id, job_id = ready_trace(service, f"recording {number}".encode()), new_id("job")
    plan_id = None if plan is None else ready_plan(service, plan_for_replay(), engine_id=None, state=plan)
    with service.database.writing() as session:
        session.get_one(Trace, trace_id).kept = False
        change_state(session, session.get_one(Trace, trace_id), TraceState.EXPIRED, Actor("t"))
        engine_id = schedules.find(session, schedule_id).engine_id
        job = Job(
            id=job_id, kind=JobKind.REBALANCE, state=JobState.SUCCEEDED, engine_id=engine_id, subject_id="cyc", step="",
            progress=1.0, attempts=1, created_by="t", created_at=at, ended_at=at,
        )  # fmt: skip
        cycle = Cycle(
            id=new_id("cyc"), schedule_id=schedule_id, number=number, engine_id=engine_id, due_at=at, asked=False,
            missed_ticks=0, settings={}, numbers={}, trace_id=trace_id, plan_id=plan_id, job_id=job_id, created_by="t",
            created_at=at,
        )  # fmt: skip
        session.add_all([job, cycle])
        if plan_id is not None:
            session.flush()
            session.add(PlanTrace(plan_id=plan_id, trace_id=trace_id, position=0))
        session.flush()
        decision = conclude(
            session, Actor("t"), cycle, outcome=Outcome.NOTHING, code="NOTHING_TO_MOVE", sentence="s.", numbers={}
        )
        session.flush()
        decision_id = first_id_of(decisions.KIND, at)[:-4] + f"{number:04d}"
        session.execute(sa.update(Decision).where(Decision.id == decision.id).values(id=decision_id, created_at=at))
    with service.database.reading() as session:
        return decisions.find(session, decision_id)


def test_decisions_are_forgotten_with_what_was_made_for_them_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "JOBS_AT_A_TIME", 2)
    schedule_id = scheduled(service, an_engine(service, "e"))
    gone = [old_decision(service, schedule_id, number, days_ago=800 - number) for number in range(1, 4)]
    unwanted = old_decision(service, schedule_id, 4, days_ago=760, plan=PlanState.REJECTED)
    pushed = old_decision(service, schedule_id, 5, days_ago=750, plan=PlanState.APPROVED)
    recent = old_decision(service, schedule_id, 6, days_ago=1)
    tidy_up(service, young_s=-1.0)
    with service.database.reading() as session:
        assert [each.id for each in session.scalars(sa.select(Decision))] == [recent.id]
        assert session.scalars(sa.select(Cycle.id)).all() == [recent.cycle_id]
        assert session.scalars(sa.select(Job.id)).all() == [recent.job_id]
        assert session.scalars(sa.select(Plan.id)).all() == [pushed.plan_id]
        assert set(session.scalars(sa.select(Trace.id))) == {pushed.trace_id, recent.trace_id}
        assert dict(decisions.counts(session)) == {Outcome.NOTHING: len(gone) + 3}
        noted = session.scalars(sa.select(AuditEvent).where(AuditEvent.action == "schedule.decisions_forgotten")).all()
    assert sum(event.data["decisions"] for event in noted) == 5
    assert {event.subject_id for event in noted} == {schedule_id}
    assert unwanted.plan_id is not None


def test_the_last_decision_of_every_schedule_stays_however_old(service: Service) -> None:
    engine_id = an_engine(service, "e")
    last = []
    for number in range(2):
        schedule_id = scheduled(service, engine_id, name=f"schedule {number}")
        old_decision(service, schedule_id, 1, days_ago=3000)
        last.append(old_decision(service, schedule_id, 2, days_ago=2000 - number))
    tidy_up(service)
    with service.database.reading() as session:
        assert set(session.scalars(sa.select(Decision.id))) == {decision.id for decision in last}


def test_all_decisions_are_kept_where_that_is_asked_for(service: Service) -> None:
    object.__setattr__(service.settings, "decision_retention_days", None)
    schedule_id = scheduled(service, an_engine(service, "e"))
    for number in (1, 2):
        old_decision(service, schedule_id, number, days_ago=9000)
    tidy_up(service)
    with service.database.reading() as session:
        assert len(session.scalars(sa.select(Decision.id)).all()) == 2
