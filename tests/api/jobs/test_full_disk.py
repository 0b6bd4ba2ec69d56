"""A disk that is full or read-only: one clear error, nothing half-written, and all works again when there is room."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.http.app import create_app
from api.jobs.durable import JobLeft
from api.service.context import Service
from api.states import JobState, Outcome
from api.store.models import Decision
from tests.api.jobs.by_hand import Memory, attempt, tasks_here  # noqa: F401  (fixture)
from tests.api.schedules import OPEN, decided, decisions_of, register, run_now, scheduled
from tests.api.services import job_of, service_on
from tests.bench.support.many_engines import many_engines
from tests.small_disk import MISSING, SmallDisk, can_mount, small_disk

pytestmark = pytest.mark.usefixtures("tasks_here")

RECORDS_ONLY = replace(OPEN, least_tokens=10**9)
COUNTS = b'{"logical_count": [[[1, 2], [3, 4]]]}'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if not can_mount(tmp_path / "tried"):
        pytest.skip(MISSING)
    with small_disk(tmp_path / "small") as mounted:
        yield mounted


@contextmanager
def opened(migrated: Path, *, database: Path, data: Path) -> Iterator[tuple[Service, TestClient, str]]:
    """A service, its API, and a schedule of a good engine."""
    data.mkdir()
    shutil.copy(migrated, database)
    with many_engines(1, steps_per_s=400.0) as (engine,), service_on(f"sqlite:///{database}", data) as service:
        client = TestClient(
            create_app(service), base_url="http://127.0.0.1", client=("127.0.0.1", 50000), raise_server_exceptions=False
        )
        yield service, client, scheduled(service, register(service, engine.url), gates=RECORDS_ONLY)


def cycle(service: Service, schedule_id: str) -> Decision:
    job = run_now(service, schedule_id)
    assert attempt(service, job.id, Memory())
    return decided(service, job.id)


def upload(client: TestClient, content: bytes = COUNTS) -> tuple[int, dict[str, Any]]:
    answered = client.post("/v1/traces", files={"files": ("counts.json", content)})
    return answered.status_code, answered.json()


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("fault", "says"), [("full", "no space left on device"), ("ro", "read-only file system")])
def test_files_that_cannot_be_stored(
    migrated_sqlite: Path, tmp_path: Path, disk: SmallDisk, fault: str, says: str
) -> None:
    data = disk.folder / "data"
    with opened(migrated_sqlite, database=tmp_path / "moeplan.db", data=data) as (service, client, schedule_id):
        assert upload(client)[0] == 202
        before = files_in(data)
        disk.fill() if fault == "full" else disk.read_only(on=True)

        status, problem = upload(client, COUNTS + b" " * 10_000)
        assert (status, problem["code"]) == (507, "OUTPUT_NOT_WRITABLE")
        assert says in problem["detail"]
        failed = cycle(service, schedule_id)
        assert (failed.outcome, failed.code) == (Outcome.FAILED, "OUTPUT_NOT_WRITABLE")
        assert says in failed.sentence
        assert client.get("/v1/decisions").json()["items"][0]["code"] == "OUTPUT_NOT_WRITABLE"
        assert files_in(data) == before

        disk.make_room() if fault == "full" else disk.read_only(on=False)
        assert upload(client, COUNTS + b" " * 10_000)[0] == 202
        assert cycle(service, schedule_id).code == "TOO_FEW_TOKENS"


def test_a_database_that_cannot_grow(migrated_sqlite: Path, tmp_path: Path, disk: SmallDisk) -> None:
    database = disk.folder / "moeplan.db"
    with opened(migrated_sqlite, database=database, data=tmp_path / "data") as (service, client, schedule_id):
        job = run_now(service, schedule_id)
        disk.fill()
        refused = client.post("/v1/engines", json={"name": "one more", "url": "http://127.0.0.1:9"})
        assert (refused.status_code, refused.json()["code"]) == (503, "DATABASE_UNREACHABLE")
        assert "disk is full" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "5"
        assert client.get("/v1/engines").status_code == 200, "what is there can be read"
        with pytest.raises(JobLeft):
            attempt(service, job.id, Memory())
        disk.make_room()
        assert (job_of(service.database, job.id).state, decisions_of(service)) == (JobState.QUEUED, [])
        assert attempt(service, job.id, Memory())
        assert decided(service, job.id).code == "TOO_FEW_TOKENS"


def test_temporary_files_that_cannot_be_written(
    migrated_sqlite: Path, tmp_path: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(migrated_sqlite, database=tmp_path / "moeplan.db", data=tmp_path / "data") as (service, client, which):
        monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
        disk.fill()
        status, problem = upload(client, COUNTS + b" " * 2**21)  # beyond what the web framework keeps in memory
        assert (status, problem["code"]) == (507, "OUTPUT_NOT_WRITABLE")
        assert "no space left on device" in problem["detail"]
        failed = cycle(service, which)
        assert (failed.outcome, failed.code) == (Outcome.FAILED, "OUTPUT_NOT_WRITABLE"), failed.sentence
        disk.make_room()
        assert upload(client, COUNTS + b" " * 2**21)[0] == 202
        assert cycle(service, which).code == "TOO_FEW_TOKENS"
