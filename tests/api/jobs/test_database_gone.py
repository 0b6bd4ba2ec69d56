"""The database goes away and comes back: requests say so, jobs are taken up, no cycle is lost or done twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from api.errors import DatabaseUnreachable
from api.http.app import create_app
from api.jobs.durable import JobLeft
from api.service.context import Service
from api.states import JobState, Outcome
from api.store import jobs
from api.store.database import Database
from api.store.migrate import upgrade
from api.store.models import Cycle, Decision, JobEvent
from tests.api.jobs.by_hand import Memory, attempt, tasks_here  # noqa: F401  (fixture)
from tests.api.schedules import OPEN, decided, decisions_of, register, run_now, scheduled
from tests.api.services import WorkerProcess, job_of, service_on, wait_for
from tests.bench.support.many_engines import many_engines
from tests.databases import needed_programs, open_database
from tests.postgres import OwnPostgres, own_postgres


@pytest.fixture
def service(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Service]:
    file = tmp_path / "moeplan.db"
    shutil.copy(migrated_sqlite, file)
    with service_on(f"sqlite:///{file}", tmp_path / "data") as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[OwnPostgres]:
    """A PostgreSQL that may be stopped, with an empty database ``moeplan``."""
    with own_postgres(needed_programs()) as started:
        with psycopg.connect(started.url % "postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE moeplan")
        yield started


class Outage:
    """Makes a database that is open look gone."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        for name in ("reading", "writing"):
            monkeypatch.setattr(database, name, self._guarded(getattr(database, name)))

    def _guarded(self, opened: Any) -> Any:
        @contextmanager
        def session() -> Iterator[Any]:
            if self.on:
                raise DatabaseUnreachable("it does not answer.")
            with opened() as found:
                yield found

        return session


@pytest.mark.usefixtures("tasks_here")
@pytest.mark.parametrize("step", ["read the engine before", "compare"])
def test_a_job_is_left_where_it_is_and_taken_up_there(
    service: Service, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    outage = Outage(service.database, monkeypatch)
    with many_engines(1, steps_per_s=400.0) as (engine,):
        job = run_now(service, scheduled(service, register(service, engine.url)))

        def begins(name: str) -> bool:
            outage.on = name == step
            return False

        memory = Memory(dies_before=begins)
        with pytest.raises(JobLeft):
            attempt(service, job.id, memory)
        outage.on = False
        assert step not in memory.names, "an outage is no result"
        left = job_of(service.database, job.id)
        assert (left.state, left.error, decisions_of(service)) == (JobState.RUNNING, None, [])
        memory.dies_before = lambda name: False
        assert attempt(service, job.id, memory)
    (decision,) = decisions_of(service)
    assert decision.outcome is Outcome.PROPOSED, decision.sentence
    with service.database.reading() as session:
        events = session.scalars(select(JobEvent).where(JobEvent.kind == "resumed")).all()
    assert [event.data["after"] for event in events] == ["its worker lost the database"]


@pytest.mark.usefixtures("tasks_here")
def test_a_worker_that_was_taken_for_dead_leaves_the_end_to_the_one_that_has_the_job(service: Service) -> None:
    with many_engines(1, steps_per_s=400.0) as (engine,):
        job = run_now(service, scheduled(service, register(service, engine.url)))

        def begins(name: str) -> bool:
            if name == "compare":
                with service.database.writing() as session:
                    taken = jobs.lock(session, job.id)
                    taken.worker, taken.attempts = "another", taken.attempts + 1
            return False

        with pytest.raises(JobLeft):  # an end here would be the queue's: the other one could not be taken up again
            attempt(service, job.id, Memory(dies_before=begins))
    left = job_of(service.database, job.id)
    assert (left.state, left.worker, decisions_of(service)) == (JobState.RUNNING, "another", [])


@pytest.mark.usefixtures("tasks_here")
def test_a_recording_goes_on_while_the_database_is_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(service.database, monkeypatch)
    said: list[bool] = []
    keep = service.files.put_file

    def put_file(path: Path) -> Any:
        outage.on = False  # the recording is over
        return keep(path)

    def report(session: Any, job_id: str, *, progress: float, step: str) -> bool:
        outage.on = step == "recording"  # gone from its first report on
        said.append(outage.on)
        return True

    monkeypatch.setattr(service.files, "put_file", put_file)
    monkeypatch.setattr(jobs, "report", report)
    with many_engines(1, steps_per_s=400.0) as (engine,):
        job = run_now(service, scheduled(service, register(service, engine.url)))
        assert attempt(service, job.id, Memory())
    assert any(said)
    assert decided(service, job.id).outcome is Outcome.PROPOSED


def cut_in_the_middle(database: Database, server: OwnPostgres) -> None:
    """Have the server end a connection while its transaction is open."""
    with database.writing() as session:
        own = session.scalar(text("SELECT pg_backend_pid()"))
        with psycopg.connect(server.url % "postgres", autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (own,))
        session.execute(text("SELECT 1"))


def test_a_connection_that_is_cut_is_said_and_the_next_one_works(server: OwnPostgres) -> None:
    database = open_database(server.url % "moeplan")
    with closing(database):
        with pytest.raises(DatabaseUnreachable, match="does not answer"):
            cut_in_the_middle(database, server)
        database.require_reachable()


def test_a_server_that_stops_and_starts_under_a_worker_and_the_api(server: OwnPostgres, tmp_path: Path) -> None:
    url = server.url % "moeplan"
    database = open_database(url)
    upgrade(database)
    database.close()
    with (
        many_engines(2, steps_per_s=30.0) as engines,
        service_on(url, tmp_path / "data") as service,
        WorkerProcess(service.settings, "w1", gone_after_s=20.0) as worker,
    ):
        client = TestClient(create_app(service), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
        gates = replace(OPEN, least_tokens=10**9)  # a cycle ends once it has recorded
        ids = [scheduled(service, register(service, each.url, name=each.url), gates=gates) for each in engines]
        begun = [run_now(service, schedule_id) for schedule_id in ids]
        wait_for(lambda: all("recorded" in job_of(service.database, job.id).step for job in begun), what="recordings")
        server.stop()
        assert client.get("/healthz").status_code == 200
        assert "moeplan_database_up 0.0" in client.get("/metrics").text
        for method, path in (("GET", "/readyz"), ("GET", "/v1/engines"), ("POST", f"/v1/schedules/{ids[0]}/run")):
            refused = client.request(method, path)
            assert (refused.status_code, refused.json()["code"]) == (503, "DATABASE_UNREACHABLE"), path
            assert refused.headers["retry-after"] == "5"
        wait_for(lambda: "without its database" in worker.log.read_text(), what="the worker to see it")
        server.start()
        assert client.get("/readyz").json()["status"] == "ok"
        for job in begun:
            assert decided(service, job.id).code == "TOO_FEW_TOKENS"
        with service.database.reading() as session:
            cycles = session.scalars(select(Cycle.id)).all()
            assert sorted(session.scalars(select(Decision.cycle_id))) == sorted(cycles)
        assert all(job_of(service.database, job.id).state is JobState.SUCCEEDED for job in begun)
        assert worker.process.poll() is None
