"""Sessions: all or nothing, seen by others only when committed, and one writer after the other."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.errors import BadCursor, WrongState
from api.states import NEXT, EngineState, JobKind, JobState, Level, PlanState, State
from api.store import audit, jobs, keys
from api.store.audit import Actor, change_state
from api.store.columns import now
from api.store.database import Database
from api.store.identifiers import IDENTIFIER, new_id
from api.store.models import AuditEvent, Engine, Job, JobEvent, Key, Plan
from api.store.pages import Paging

ACTOR = Actor("key:tester", request_id="r1")


def a_key(name: str = "ci", **changes: object) -> Key:
    values: dict[str, object] = {
        "id": new_id("key"), "name": name, "level": Level.READ, "sha256": new_id("k"), "starts_with": "mp_",
        "created_by": "t", "created_at": now(), **changes,
    }  # fmt: skip
    return Key(**values)


def a_plan() -> Plan:
    return Plan(
        id=new_id("pln"), name="p", state=PlanState.WAITING, request={}, created_by="t", created_at=now(), version=1
    )


def an_engine(name: str) -> Engine:
    return Engine(
        id=new_id("eng"), name=name, url="http://e", labels={}, warnings=[], state=EngineState.UNKNOWN,
        failures_in_row=0, failures=0, moved_bytes=0, version=1, created_at=now(),
    )  # fmt: skip


def test_a_block_that_raises_changes_nothing(database: Database) -> None:
    def fail_after_writing() -> None:
        with database.writing() as session:
            session.add(a_key())
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_after_writing()
    with database.reading() as session:
        assert session.scalars(sa.select(Key)).all() == []


def test_readers_see_what_is_committed_and_do_not_wait(database: Database) -> None:
    with database.writing() as writer:
        writer.add(a_key())
        writer.flush()
        with database.reading() as reader:
            assert reader.scalars(sa.select(Key)).all() == []
    with database.reading() as reader:
        assert len(reader.scalars(sa.select(Key)).all()) == 1


def test_every_later_connection_to_sqlite_writes_ahead(migrated_sqlite: Path) -> None:
    with closing(sqlite3.connect(migrated_sqlite)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_writers_that_read_first_lose_no_update(database: Database) -> None:
    with database.writing() as session:
        session.add(plan := a_plan())

    def add_one() -> None:
        for _ in range(10):
            with database.writing() as session:
                found = session.get_one(Plan, plan.id, with_for_update=True)
                found.version += 1

    threads = [threading.Thread(target=add_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as session:
        assert session.get_one(Plan, plan.id).version == 41


def test_foreign_keys_hold(database: Database) -> None:
    with pytest.raises(sa.exc.IntegrityError), database.writing() as session:
        session.add(JobEvent(job_id="none", at=now(), kind="state", data={}))


def test_two_engines_may_share_a_name_only_when_one_is_removed(database: Database) -> None:
    with database.writing() as session:
        session.add(first := an_engine("prefill"))
    with pytest.raises(sa.exc.IntegrityError), database.writing() as session:
        session.add(an_engine("prefill"))
    with database.writing() as session:
        session.get_one(Engine, first.id).removed_at = now()
    with database.writing() as session:
        session.add(an_engine("prefill"))


def test_times_come_back_as_utc(database: Database) -> None:
    there = datetime(2026, 11, 29, 13, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    with database.writing() as session:
        session.add(key := a_key(expires_at=there))
    with database.reading() as session:
        found = session.get_one(Key, key.id).expires_at
    assert found == there
    assert found is not None
    assert found.tzinfo is UTC


def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    with pytest.raises(sa.exc.StatementError), database.writing() as session:
        session.add(a_key(expires_at=datetime(2026, 1, 1)))


def test_pages_neither_repeat_nor_skip(database: Database) -> None:
    made = [a_key(f"k{index}") for index in range(7)]
    with database.writing() as session:
        session.add_all(made)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        with database.reading() as session:
            page = keys.page(session, Paging(3, cursor))
        seen += [key.id for key in page.rows]
        with database.writing() as session:  # what comes in between is newer, so no page shows it
            session.add(a_key("late"))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == sorted((key.id for key in made), reverse=True)


@pytest.mark.parametrize("cursor", ["", "x", "!!", "a" * 500, "a2V5XzA", "MQ", "w6Q"])
def test_cursors_of_nobody_are_refused(database: Database, cursor: str) -> None:
    with database.reading() as session, pytest.raises(BadCursor):
        keys.page(session, Paging(3, cursor))


def test_identifiers_sort_by_time() -> None:
    made = [new_id("job") for _ in range(3)]
    assert all(IDENTIFIER.fullmatch(each) for each in made)
    assert made[0][:14] <= made[1][:14] <= made[2][:14]
    assert len(set(made)) == 3


def test_a_drawn_step_is_taken_and_written_down(database: Database) -> None:
    with database.writing() as session:
        session.add(plan := a_plan())
        session.flush()
        change_state(session, plan, PlanState.SOLVING, ACTOR, why="a worker took it")
    with database.reading() as session:
        (event,) = audit.events(session, subject_id=plan.id, paging=Paging(10)).rows
        found = session.get_one(Plan, plan.id)
    assert (found.state, found.version) == (PlanState.SOLVING, 2)
    assert (event.who, event.from_state, event.to_state, event.why, event.subject, event.request_id) == (
        "key:tester", "waiting", "solving", "a worker took it", "plan", "r1",
    )  # fmt: skip


def test_a_step_that_is_not_drawn_is_refused(database: Database) -> None:
    with database.writing() as session:
        session.add(plan := a_plan())
    with pytest.raises(WrongState, match="the plan is waiting"), database.writing() as session:
        change_state(session, session.get_one(Plan, plan.id), PlanState.APPROVED, ACTOR)
    with database.reading() as session:
        assert session.scalars(sa.select(AuditEvent)).all() == []


def test_every_state_has_a_sentence_and_can_be_reached() -> None:
    for kind, steps in NEXT.items():
        states: list[State] = list(kind)
        assert all(state.sentence.endswith(".") for state in states)
        reached = {next(iter(states))}
        while more := {then for now_, after in steps.items() if now_ in reached for then in after} - reached:
            reached |= more
        assert reached == set(states)


def test_an_idempotency_key_is_claimed_once(database: Database) -> None:
    claim = {"who": "key:a", "key": "k1", "request_sha256": "00"}
    with database.writing() as session:
        assert keys.claim_answer(session, **claim) is None
        keys.keep_answer(session, who="key:a", key="k1", status=201, headers={"location": "/x"}, body=b"{}")
    with database.writing() as session:
        found = keys.claim_answer(session, **claim)
        assert found is not None
        assert (found.status, found.headers, found.body) == (201, {"location": "/x"}, b"{}")
        assert keys.claim_answer(session, **{**claim, "who": "key:b"}) is None


def test_a_claim_that_is_rolled_back_is_free_again(database: Database) -> None:
    def claim_and_fail() -> None:
        with database.writing() as session:
            assert keys.claim_answer(session, who="a", key="k", request_sha256="0") is None
            raise RuntimeError

    with pytest.raises(RuntimeError):
        claim_and_fail()
    with database.writing() as session:
        assert keys.claim_answer(session, who="a", key="k", request_sha256="0") is None


def test_events_follow_each_other_and_reports_end_with_the_job(database: Database) -> None:
    job = Job(
        id=new_id("job"), kind=JobKind.PLAN, state=JobState.RUNNING, subject_id="x", progress=0.0, step="", attempts=1,
        created_by="t", created_at=now(),
    )  # fmt: skip
    with database.writing() as session:
        session.add(job)
    for progress in (0.2, 0.6):
        with database.writing() as session:
            assert jobs.report(session, job.id, progress=progress, step="searching")
    with database.reading() as session:
        first, second = jobs.events_after(session, job.id, 0)
        assert first.number < second.number
        assert [event.number for event in jobs.events_after(session, job.id, first.number)] == [second.number]
        assert session.get_one(Job, job.id).progress == 0.6
    with database.writing() as session:
        session.get_one(Job, job.id).state = JobState.CANCELLED
        session.flush()
        assert not jobs.report(session, job.id, progress=0.9, step="late")
        assert session.get_one(Job, job.id, populate_existing=True).progress == 0.6


def test_a_worker_that_was_forgotten_is_seen_again(database: Database) -> None:
    """A worker taken for dead that lives on must not stumble over its own heartbeat."""
    alive = {"host": "h", "process": 1, "version": "0", "started_at": now()}
    with database.writing() as session:
        jobs.seen(session, "w1", **alive)
        jobs.seen(session, "w1", **alive)
    with database.writing() as session:
        jobs.forget_workers(session, not_seen_since=now() + timedelta(seconds=1))
        jobs.seen(session, "w1", **alive)
    with database.reading() as session:
        assert [worker.id for worker in jobs.workers(session)] == ["w1"]
        (seen,) = jobs.workers(session)
        assert abs(now() - seen.seen_at) < timedelta(seconds=60)
