"""Two versions of the service at once, as in an upgrade: what is refused, what goes on, and that no job is stuck."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.errors import DatabaseOutdated, DatabaseTooNew
from api.http.app import create_app
from api.jobs import durable
from api.jobs.durable import Executor
from api.jobs.older_jobs import OLDER, settle_older_jobs
from api.jobs.running import run_job
from api.jobs.worker import WORKS
from api.service.context import Service, open_service
from api.states import JobState, Outcome
from api.store import jobs
from api.store.columns import now
from api.store.migrate import downgrade, revisions
from api.store.models import Worker
from tests.api.jobs.by_hand import Memory, attempt, tasks_here  # noqa: F401  (fixture)
from tests.api.schedules import OPEN, an_engine, decided, register, run_now, scheduled
from tests.api.services import job_of, service_on, wait_for
from tests.bench.support.many_engines import many_engines
from tests.databases import open_database

pytestmark = pytest.mark.one_database

GONE_AFTER_S = 30.0


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_on(database_url, tmp_path / "data") as opened:
        yield opened


def queued_by_an_older_one(service: Service, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as older:
        older.setattr(durable, "STEPS_VERSION", "1")
        return run_now(service, scheduled(service, an_engine(service, "some engine"))).id


def begun(service: Service, job_id: str) -> None:
    """Leave a job as a worker that was killed leaves it."""
    with service.database.writing() as session:
        job = jobs.lock(session, job_id)
        job.state, job.worker, job.attempts = JobState.RUNNING, "old-worker", 1


def seen(service: Service, worker_id: str, *, version: str, seconds_ago: float) -> None:
    at = now() - timedelta(seconds=seconds_ago)
    with service.database.writing() as session:
        row = Worker(id=worker_id, host="h", process=1, moeplan_version=version, started_at=at, seen_at=at)
        session.merge(row)


def test_a_job_that_an_older_version_queued_is_taken_by_a_newer_worker(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = queued_by_an_older_one(service, monkeypatch)
    executor = Executor(
        service.settings.database, worker_id="new-worker", jobs_at_a_time=1,
        run=lambda job_id, steps: run_job(service, "new-worker", WORKS, job_id, steps),
    )  # fmt: skip
    executor.start()
    try:
        settle_older_jobs(service, gone_after_s=GONE_AFTER_S)
        ended = wait_for(lambda: job if (job := job_of(service.database, job_id)).state.ended else None)
    finally:
        executor.stop()
    assert ended.worker == "new-worker"
    assert decided(service, job_id).code == "ENGINE_UNREACHABLE"


def test_a_begun_one_is_left_to_an_old_worker_and_ends_when_there_is_none(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = queued_by_an_older_one(service, monkeypatch)
    begun(service, job_id)
    seen(service, "old-worker", version="0.0.1", seconds_ago=1.0)
    settle_older_jobs(service, gone_after_s=GONE_AFTER_S)
    assert job_of(service.database, job_id).state is JobState.RUNNING
    seen(service, "old-worker", version="0.0.1", seconds_ago=GONE_AFTER_S + 1)
    settle_older_jobs(service, gone_after_s=GONE_AFTER_S)
    ended = job_of(service.database, job_id)
    assert (ended.state, (ended.error or {})["code"]) == (JobState.FAILED, OLDER)
    decision = decided(service, job_id)
    assert (decision.outcome, decision.code) == (Outcome.FAILED, OLDER)
    assert "Ask for it again" in decision.sentence
    assert service.queue.of_older_steps() == []


def test_what_a_newer_version_queued_is_left_alone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(durable, "STEPS_VERSION", str(int(durable.STEPS_VERSION) + 1))
        job_id = run_now(service, scheduled(service, an_engine(service, "some engine"))).id
    settle_older_jobs(service, gone_after_s=GONE_AFTER_S)
    assert job_of(service.database, job_id).state is JobState.QUEUED


@pytest.mark.usefixtures("tasks_here")
def test_a_service_that_runs_goes_on_while_the_schema_is_brought_up_and_none_starts_on_it(service: Service) -> None:
    client = TestClient(create_app(service), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
    with many_engines(1, steps_per_s=400.0) as (engine,):
        schedule_id = scheduled(service, register(service, engine.url), gates=OPEN)
        with service.database.connection() as connection:  # what a newer moeplan does: it adds, and takes nothing away
            connection.execute(text("ALTER TABLE schedules ADD COLUMN colour VARCHAR(24)"))
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        assert client.get("/v1/schedules").json()["items"][0]["id"] == schedule_id
        job = run_now(service, schedule_id)
        assert attempt(service, job.id, Memory())
    assert decided(service, job.id).outcome is Outcome.PROPOSED
    with pytest.raises(DatabaseTooNew, match=r"revision 9999.*a newer one made it"), open_service(service.settings):
        pytest.fail("it was opened")


def test_a_newer_service_does_not_start_on_an_older_schema(migrated_sqlite: Path, tmp_path: Path) -> None:
    shutil.copy(migrated_sqlite, tmp_path / "moeplan.db")
    url = f"sqlite:///{tmp_path}/moeplan.db"
    database = open_database(url)
    downgrade(database, revisions()[-2])
    database.close()
    with pytest.raises(DatabaseOutdated, match="run moeplan db upgrade"), service_on(url, tmp_path / "data"):
        pytest.fail("it was opened")
