"""Retention and what is removed with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from api.jobs.housekeeping import tidy_up
from api.jobs.plan_work import checkpoint_folder
from api.service.context import Service
from api.states import JobState, TraceState
from api.store import audit, traces
from api.store.columns import now
from api.store.models import Trace
from api.store.pages import Paging
from tests.api.jobs.test_jobs import upload
from tests.api.services import job_of, ready_trace, service_on


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
