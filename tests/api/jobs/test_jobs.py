"""Jobs on real workers: done once, in order, whatever happens to the worker."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.plan_request import PlanRequest
from api.planning import plan_from_files
from api.service import engines as engine_service
from api.service import jobs as job_service
from api.service import plans as plan_service
from api.service import rollouts as rollout_service
from api.service import traces as trace_service
from api.service.context import Service
from api.service.rollouts import NO_MEASURING, Measuring
from api.states import EngineState, JobState, PlanState, RolloutState, TraceState
from api.store import engines, jobs, plans, traces
from api.store.models import Job
from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.push import push
from profiler.readers.options import ReadOptions
from tests.api.services import (
    ACTOR,
    SLOTS_PER_GPU,
    WorkerProcess,
    counts_trace,
    job_of,
    plan_for_replay,
    ready_plan,
    ready_trace,
    replay_engine,
    service_on,
    succeeded,
    wait_for,
    wait_for_end,
)

pytestmark = pytest.mark.one_database

HARD: dict[str, Any] = {"gpus": 8, "nodes": 2, "slots_per_gpu": 12, "max_imbalance": 1.01}
"""Options under which :func:`hard_trace` takes some seconds to plan."""


@pytest.fixture(scope="session")
def hard_trace(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A recording with many batches of layers to search."""
    counts_WLE = np.random.default_rng(0).gamma(0.6, 500.0, (3, 40, 64)).astype(int) + 1
    return counts_trace(tmp_path_factory.mktemp("hard"), counts_WLE.tolist())


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


def upload(service: Service, content: bytes, name: str) -> tuple[str, str]:
    stored = service.files.put_bytes(content)
    with service.database.writing() as session:
        trace, job = trace_service.upload(
            service, session, ACTOR, name=name, engine=None, files={name: stored}, read={}
        )
        return trace.id, job.id


def register(service: Service, url: str) -> str:
    with service.database.writing() as session:
        engine = engine_service.register(
            session, ACTOR, name="replay", url=url, key_reference=None, read_key_reference=None, labels={}, costs=None
        )
    engine_service.read(service, engine.id)
    return engine.id


def ask_for_plan(
    service: Service, trace_ids: list[str], *, engine_id: str | None = None, **options: object
) -> tuple[str, str]:
    with service.database.writing() as session:
        engine = None if engine_id is None else engines.find(session, engine_id)
        plan, job = plan_service.ask(
            service, session, ACTOR, name="p", engine=engine, trace_ids=trace_ids, options=options
        )
        return plan.id, job.id


def roll_out(service: Service, plan_id: str, *, measuring: Measuring = NO_MEASURING, **pace: object) -> tuple[str, str]:
    with service.database.writing() as session:
        plan = plans.find(session, plan_id)
        if plan.state is PlanState.PROPOSED:
            plan_service.decide(session, ACTOR, plan, PlanState.APPROVED, why="looks good")
        rollout, job = rollout_service.begin(
            service, session, ACTOR, plan=plan, engine=None, pace=dict(pace), measuring=measuring, reason="test"
        )
        return rollout.id, job.id


def test_from_recording_to_rollout_and_back(service: Service) -> None:
    """The whole loop: capture, plan, approve, push, verify, take back."""
    with replay_engine() as url, WorkerProcess(service.settings, "w1"), EngineClient(url) as client:
        engine_id = register(service, url)
        with service.database.writing() as session:
            engine = engines.find(session, engine_id)
            assert engine.state is EngineState.READY
            trace, capture_job = trace_service.capture(
                service, session, ACTOR, name="live", engine=engine, limits={"steps": 20, "window_steps": 10}
            )
        succeeded(service.database, capture_job.id)
        with service.database.reading() as session:
            found = traces.find(session, trace.id)
        assert found.state is TraceState.READY
        assert found.facts is not None
        assert found.facts["steps"] >= 20
        assert found.facts["source_ranks"] == 8

        plan_id, plan_job = ask_for_plan(service, [trace.id], engine_id=engine_id, time_limit_s=3.0)
        succeeded(service.database, plan_job)
        before = client.placement()
        rollout_id, rollout_job = roll_out(service, plan_id, measuring=Measuring(seconds=2.0))
        succeeded(service.database, rollout_job)
        after = client.placement()
        with service.database.writing() as session:
            plan, rollout = plans.find(session, plan_id), plans.find_rollout(session, rollout_id)
            assert rollout.state is RolloutState.APPLIED
            assert (rollout.from_hash, rollout.to_hash) == (before.layout_hash, after.layout_hash)
            assert plan.layout_hash == after.layout_hash
            assert plan.current_hash == before.layout_hash
            assert rollout.result is not None
            assert rollout.result["weights_checked"]
            assert rollout.measured is not None
            assert rollout.measured["local_gpu"] == pytest.approx(rollout.measured["counted"]["local_gpu"], abs=0.05)
            back, back_job = rollout_service.take_back(service, session, ACTOR, rollout=rollout, reason="worse")
        succeeded(service.database, back_job.id)
        assert client.placement().layout_hash == before.layout_hash
        with service.database.reading() as session:
            assert plans.find_rollout(session, rollout_id).state is RolloutState.ROLLED_BACK
            assert plans.find_rollout(session, back.id).state is RolloutState.APPLIED


def test_uploads_are_read_or_fail_with_the_readers_sentence(service: Service) -> None:
    good_id, good = upload(service, b'{"logical_count": [[4, 2, 1, 1]]}', "counts.json")
    bad_id, bad = upload(service, b'{"logical_count": [[1, -2]]}', "counts.json")
    stopped_id, stopped = upload(service, b"{}", "counts.json")
    assert cancel(service, stopped).state is JobState.CANCELLED
    with WorkerProcess(service.settings, "w1"):
        succeeded(service.database, good)
        failed = wait_for_end(service.database, bad)
    assert failed.state is JobState.FAILED
    assert failed.error is not None
    assert failed.error["code"] == "NEGATIVE_COUNT"
    assert job_of(service.database, stopped).attempts == 0
    with service.database.reading() as session:
        assert traces.find(session, good_id).state is TraceState.READY
        trace = traces.find(session, bad_id)
        assert (trace.state, trace.error) == (TraceState.FAILED, failed.error)
        assert traces.find(session, stopped_id).state is TraceState.FAILED
        assert not any(traces.uploads(session, each) for each in (good_id, bad_id, stopped_id))


def test_a_killed_workers_job_goes_on_where_it_was(service: Service, hard_trace: bytes) -> None:
    trace_id = ready_trace(service, hard_trace)
    with WorkerProcess(service.settings, "w1") as first:
        plan_id, job_id = ask_for_plan(service, [trace_id], **HARD)
        folder = service.settings.data_dir / "checkpoints" / job_id
        wait_for(lambda: len(list(folder.glob("*.npz"))) >= 3, what="three batches of layers")
        first.kill()
    kept = {file.name: file.stat().st_mtime_ns for file in folder.glob("*.npz")}
    with WorkerProcess(service.settings, "w2"):
        wait_for(lambda: job_of(service.database, job_id).worker == "w2", what="the take-over")
        wait_for(lambda: len(list(folder.glob("*.npz"))) > len(kept), what="more layers")
        again = {file.name: file.stat().st_mtime_ns for file in folder.glob("*.npz") if file.name in kept}
        job = succeeded(service.database, job_id)
    assert again == kept  # none was searched and written again
    assert job.attempts == 2
    with service.database.reading() as session:
        assert plans.find(session, plan_id).state is PlanState.PROPOSED
        told = [event.kind for event in jobs.events_after(session, job_id, 0)]
    assert told.count("resumed") == 1
    assert not folder.exists()


@pytest.mark.thorough
def test_a_plan_on_several_processes_is_the_same_also_when_its_worker_is_killed(
    migrated_sqlite: Path, tmp_path: Path, hard_trace: bytes
) -> None:
    file = tmp_path / "moeplan.db"
    shutil.copy(migrated_sqlite, file)
    with service_on(f"sqlite:///{file}", tmp_path / "data", plan_workers=2) as service:
        trace_id = ready_trace(service, hard_trace)
        with WorkerProcess(service.settings, "w1") as first:
            plan_id, job_id = ask_for_plan(service, [trace_id], **HARD)
            folder = service.settings.data_dir / "checkpoints" / job_id
            wait_for(lambda: len(list(folder.glob("*.npz"))) >= 3, what="three batches of layers")
            first.kill()
        with WorkerProcess(service.settings, "w2"):
            assert succeeded(service.database, job_id).attempts == 2
        with service.database.reading() as session:
            found = plans.find(session, plan_id)
            recording = service.files.path(str(traces.find(session, trace_id).sha256))
    alone = plan_from_files([recording], ReadOptions(), PlanRequest(**HARD))
    assert found.layout_hash == alone.layout.hash


def test_a_worker_killed_while_it_pushes_does_not_push_twice(service: Service) -> None:
    with replay_engine() as url, EngineClient(url) as client:
        engine_id = register(service, url)
        plan_id = ready_plan(service, plan_for_replay(), engine_id=engine_id, state=PlanState.PROPOSED)
        with WorkerProcess(service.settings, "w1") as first:
            rollout_id, job_id = roll_out(service, plan_id, layers_per_chunk=1, pause_s=0.3)
            wait_for(lambda: client.placement().push_in_progress, what="the push")
            first.kill()
        with WorkerProcess(service.settings, "w2"):
            job = succeeded(service.database, job_id)
        after = client.placement()
    with service.database.reading() as session:
        rollout = plans.find_rollout(session, rollout_id)
    assert job.attempts == 2
    assert after.generation == 1
    assert rollout.state is RolloutState.APPLIED
    assert after.layout_hash == rollout.to_hash
    assert rollout.result is not None
    assert rollout.result["resumed"]
    assert rollout.result["weights_checked"]


def test_an_engine_that_somebody_else_changed_is_left_alone(sqlite_service: Service) -> None:
    service = sqlite_service
    made = plan_for_replay()
    with replay_engine() as url, EngineClient(url) as client:
        engine_id = register(service, url)
        plan_id = ready_plan(service, made, engine_id=engine_id, state=PlanState.PROPOSED)
        with WorkerProcess(service.settings, "w1") as first:
            rollout_id, job_id = roll_out(service, plan_id, layers_per_chunk=1, pause_s=0.5)
            wait_for(lambda: client.placement().push_in_progress, what="the push")
            first.kill()
        wait_for(lambda: not client.placement().push_in_progress, what="the end of the push")
        rotated_LP = np.roll(made.layout.slot_to_expert_LP, SLOTS_PER_GPU, axis=1)
        other = Layout(rotated_LP, gpus=made.layout.gpus, experts=made.layout.experts)
        push(client, other, history=None)
        with WorkerProcess(service.settings, "w2"):
            job = wait_for_end(service.database, job_id)
        assert client.placement().layout_hash == other.hash
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert job.error["code"] == "LAYOUT_HASH_MISMATCH"
    with service.database.reading() as session:
        rollout = plans.find_rollout(session, rollout_id)
    assert rollout.state is RolloutState.SUPERSEDED
    assert rollout.runs_hash == other.hash


@pytest.mark.thorough
def test_a_recording_whose_worker_is_killed_is_stopped_and_made_again(sqlite_service: Service) -> None:
    """Case P37 from the other side: what is left open by a dead worker is its own, and no engine records for ever."""
    service = sqlite_service
    with replay_engine() as url, EngineClient(url) as client:
        engine_id = register(service, url)
        with service.database.writing() as session:
            engine = engines.find(session, engine_id)
            limits = {"steps": 60, "window_steps": 10}
            trace, job = trace_service.capture(service, session, ACTOR, name="c", engine=engine, limits=limits)
        with WorkerProcess(service.settings, "w1") as first:
            wait_for(lambda: job_of(service.database, job.id).progress > 0, what="the first window")
            first.kill()
        with WorkerProcess(service.settings, "w2"):
            succeeded(service.database, job.id)
        assert not client.stop_demand().recording
    with service.database.reading() as session:
        facts = traces.find(session, trace.id).facts
    assert facts is not None
    assert facts["steps"] >= 60


def test_cancel_stops_a_solve(sqlite_service: Service, hard_trace: bytes) -> None:
    service = sqlite_service
    trace_id = ready_trace(service, hard_trace)
    with WorkerProcess(service.settings, "w1"):
        plan_id, job_id = ask_for_plan(service, [trace_id], **HARD)
        wait_for(lambda: job_of(service.database, job_id).progress > 0, what="a solve under way")
        cancel(service, job_id)
        job = wait_for_end(service.database, job_id)
    assert job.state is JobState.CANCELLED
    assert job.progress < 1.0
    with service.database.reading() as session:
        plan = plans.find(session, plan_id)
    assert (plan.state, plan.sha256) == (PlanState.CANCELLED, None)


def test_of_one_engine_one_job_runs_at_a_time(service: Service) -> None:
    with replay_engine() as url:
        engine_id = register(service, url)
        made = []
        for number in range(2):
            with service.database.writing() as session:
                engine = engines.find(session, engine_id)
                limits = {"steps": 20}
                made.append(
                    trace_service.capture(service, session, ACTOR, name=f"c{number}", engine=engine, limits=limits)[
                        1
                    ].id
                )
        with WorkerProcess(service.settings, "w1"), WorkerProcess(service.settings, "w2"):
            ended = [succeeded(service.database, job_id) for job_id in made]
    spans = sorted((job.started_at, job.ended_at) for job in ended if job.started_at and job.ended_at)
    assert len(spans) == 2
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


def cancel(service: Service, job_id: str) -> Job:
    with service.database.writing() as session:
        job = jobs.lock(session, job_id)
        job_service.cancel(session, ACTOR, job, why="changed my mind")
        return job
