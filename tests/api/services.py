"""A whole service for tests: its state, workers as real processes, and a replay engine."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.jobs import durable
from api.plan_request import PlanRequest
from api.planning import plan_from_files
from api.service.context import Service, open_service
from api.settings import Settings, read_settings
from api.states import JobState, PlanState, TraceState
from api.store import jobs
from api.store.audit import Actor
from api.store.columns import now
from api.store.database import Database
from api.store.identifiers import new_id
from api.store.models import Job, Plan, Trace
from placement.plan import Plan as MadePlan
from profiler.inputs import open_inputs
from profiler.plan_file import render_plan
from profiler.readers.options import ReadOptions
from profiler.recordings import MIXED, recording_path
from profiler.replay import running_replay
from profiler.writers.parquet import import_trace

ACTOR = Actor("key:tester")
GPUS, SLOTS_PER_GPU = 8, 16
LIMIT_S = 240.0
"""Only a hung job waits so long; a busy machine must not fail a test."""

WORKER = """
import sys
from api.jobs import durable, worker
from api.settings import read_settings
gone_after_s, beat_s = float(sys.argv[2]), float(sys.argv[3])
durable.POLL_S = beat_s / 2
worker.HEARTBEAT_S, worker.GONE_AFTER_S = beat_s, gone_after_s
worker.work.__kwdefaults__.update(heartbeat_s=beat_s, gone_after_s=gone_after_s)
worker.run_worker(read_settings(), worker_id=sys.argv[1], lifeline=True)
"""


@contextmanager
def service_on(database_url: str, data_dir: Path, **settings: Any) -> Iterator[Service]:
    """Open a service on a migrated database."""
    chosen = read_settings(database_url=database_url, data_dir=data_dir, engine_timeout_s=5.0, **settings)
    durable.upgrade(chosen.database)
    with open_service(chosen) as service:
        yield service


class WorkerProcess:
    """A worker in a process of its own, which can be killed like any other."""

    def __init__(
        self, settings: Settings, worker_id: str, *, gone_after_s: float = 2.0, beat_s: float = 0.2,
        log_folder: Path | None = None,
    ) -> None:  # fmt: skip
        variables = {
            "MOEPLAN_DATABASE_URL": settings.database.render_as_string(hide_password=False),
            "MOEPLAN_DATA_DIR": str(settings.data_dir),
            "MOEPLAN_ENGINE_TIMEOUT_S": str(settings.engine_timeout_s),
            "MOEPLAN_PLAN_WORKERS": str(settings.plan_workers),
        }
        self.id = worker_id
        self.log = (log_folder or settings.data_dir) / f"{worker_id}.log"
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER, worker_id, str(gone_after_s), str(beat_s)],
                stdin=subprocess.PIPE, stderr=log,
                env={**os.environ, **variables},
            )  # fmt: skip

    def kill(self) -> None:
        """End it as the kernel does when memory runs out."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def replay_engine(**options: Any) -> Iterator[str]:
    """Run a replay engine of the shipped recording; it steps by itself."""
    (reader,) = open_inputs([recording_path(MIXED)], ReadOptions())
    usual = {"gpus": GPUS, "slots_per_gpu": SLOTS_PER_GPU, "homes": "round-robin", "steps_per_s": 100.0}
    with running_replay(reader, **{**usual, **options}) as url:
        yield url


def counts_trace(folder: Path, counts: Any, *, name: str = "counts") -> bytes:
    """Return a moeplan trace of counts [W, L, E]."""
    source, out = folder / f"{name}.json", folder / f"{name}.parquet"
    source.write_text(json.dumps({"logical_count": counts}))
    import_trace(open_inputs([source], ReadOptions()), out)
    return out.read_bytes()


def ready_trace(service: Service, content: bytes) -> str:
    """Keep a recording as a job would leave it."""
    stored = service.files.put_bytes(content)
    trace = Trace(
        id=new_id("trc"), name="ready", state=TraceState.READY, origin="upload", request={}, sha256=stored.sha256,
        size_bytes=stored.size_bytes, facts={}, warnings=[], kept=True, created_by="t", created_at=now(), version=1,
    )  # fmt: skip
    with service.database.writing() as session:
        session.add(trace)
    return trace.id


def ready_plan(service: Service, made: MadePlan, *, engine_id: str | None, state: PlanState) -> str:
    """Keep a plan as a job would leave it."""
    stored = service.files.put_bytes(render_plan(made).encode())
    plan = Plan(
        id=new_id("pln"), name="ready", state=state, engine_id=engine_id, request={}, sha256=stored.sha256,
        layout_hash=made.layout.hash, status=str(made.status), local_gpu=made.metrics.local_gpu,
        imbalance=made.metrics.imbalance, moved_slots=made.moves.moved_slots, created_by="t", created_at=now(),
        version=1,
    )  # fmt: skip
    with service.database.writing() as session:
        session.add(plan)
    return plan.id


@functools.cache
def plan_for_replay() -> MadePlan:
    """Return a plan that fits :func:`replay_engine`, made once."""
    request = PlanRequest(gpus=GPUS, slots_per_gpu=SLOTS_PER_GPU)
    return plan_from_files([recording_path(MIXED)], ReadOptions(), request)


def wait_for(found: Callable[[], Any], *, limit_s: float = LIMIT_S, what: str = "") -> Any:
    """Wait until something is true; its value."""
    until_s = time.monotonic() + limit_s
    while not (value := found()):
        if time.monotonic() > until_s:
            raise AssertionError(f"not within {limit_s:g} s: {what or found}")
        time.sleep(0.05)
    return value


def job_of(database: Database, job_id: str) -> Job:
    with database.reading() as session:
        return jobs.find(session, job_id)


def wait_for_end(database: Database, job_id: str) -> Job:
    """Wait until a job has ended."""
    ended: Job = wait_for(
        lambda: job if (job := job_of(database, job_id)).state.ended else None, what=f"the end of {job_id}"
    )
    return ended


def succeeded(database: Database, job_id: str) -> Job:
    job = wait_for_end(database, job_id)
    assert job.state is JobState.SUCCEEDED, job.error
    return job
