"""Rollouts against the replay engine: measured, taken back, and told by reading when something goes wrong."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api.errors import WrongState
from api.jobs import rollout_measure
from api.jobs.rollout_work import carry_out
from api.jobs.running import JobRun
from api.service import engine_access
from api.service import jobs as job_service
from api.service import plans as plan_service
from api.service import rollouts as rollout_service
from api.service.context import Service
from api.service.rollouts import NO_MEASURING, Measuring
from api.states import JobState, PlanState, RolloutState
from api.store import audit, jobs, plans
from api.store.pages import Paging
from profiler.engine.client import EngineClient
from profiler.replay import Faults
from tests.api.rollouts import (
    LIGHT,
    SHORT,
    STILL,
    WORKER,
    DurableSteps,
    Killed,
    asked,
    carried_out,
    poor_plan,
    registered,
    rollout_of,
    trivial_layout,
)
from tests.api.services import ACTOR, plan_for_replay, ready_plan, replay_engine, service_on


@pytest.fixture
def service(migrated_sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """On SQLite: what the database does with jobs is tested with real workers (``test_jobs``)."""
    monkeypatch.setattr(engine_access, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(rollout_measure, "LEAST_PAIRS_PER_GPU", 50)  # a busy machine serves few steps
    file = tmp_path / "moeplan.db"
    shutil.copy(migrated_sqlite, file)
    with service_on(f"sqlite:///{file}", tmp_path / "data") as opened:
        yield opened


def states_of(service: Service, rollout_id: str) -> list[str]:
    with service.database.reading() as session:
        rows = audit.events(session, subject_id=rollout_id, paging=Paging(limit=100)).rows
    return [str(row.to_state) for row in reversed(rows) if row.to_state]


# ------------------------------------------------------------------ measuring


def test_a_layout_is_measured_on_the_engines_own_traffic_and_kept(service: Service) -> None:
    with replay_engine(**LIGHT) as url, EngineClient(url) as client:
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay())
        job = carried_out(service, job_id)
        assert client.placement().layout_hash == plan_for_replay().layout.hash
        assert not client.stop_demand().recording
    rollout = rollout_of(service, rollout_id)
    assert (job.state, rollout.state) == (JobState.SUCCEEDED, RolloutState.APPLIED), job.error
    assert states_of(service, rollout_id) == ["checking", "pushing", "verifying", "measuring", "applied"]
    assert rollout.predicted is not None
    assert rollout.measured is not None
    assert rollout.measured_before is not None
    assert rollout.verdict is not None
    assert rollout.verdict["code"] == "KEPT"
    assert rollout.verdict["metric"] == "local_gpu"
    assert rollout.predicted["local_gpu"] == plan_for_replay().metrics.local_gpu
    assert rollout.measured["local_gpu"] > 1.2 * rollout.measured_before["local_gpu"]
    # The ruler on the recorded demand says what the engine itself counted, up to the steps around the recording.
    assert rollout.measured["counted"]["local_gpu"] == pytest.approx(rollout.measured["local_gpu"], abs=0.03)
    assert job.result is not None
    assert job.result["layout_hash"] == rollout.runs_hash == rollout.to_hash
    assert job.result["moved_bytes"] == rollout.result["moved_bytes"]  # type: ignore[index]


def test_a_layout_that_is_measured_worse_is_taken_back_by_itself(service: Service) -> None:
    with replay_engine(layout=plan_for_replay().layout, **LIGHT) as url, EngineClient(url) as client:
        rollout_id, job_id = asked(service, registered(service, url), poor_plan())
        job = carried_out(service, job_id)
        assert client.placement().layout_hash == plan_for_replay().layout.hash
        assert [push["status"] for push in client.replayed_pushes()] == ["applied", "applied"]
    rollout = rollout_of(service, rollout_id)
    assert rollout.state is RolloutState.ROLLED_BACK
    assert states_of(service, rollout_id)[-3:] == ["measuring", "taking_back", "rolled_back"]
    assert rollout.runs_hash == rollout.from_hash == plan_for_replay().layout.hash
    assert rollout.verdict is not None
    assert rollout.verdict["code"] == "WORSE_THAN_BEFORE"
    assert rollout.verdict["worse_by"] > rollout.verdict["margin"] == 0.05
    assert rollout.taken_back is not None
    assert rollout.taken_back["weights_checked"]
    assert job.state is JobState.FAILED
    assert job.error == rollout.error
    assert rollout.error is not None
    assert rollout.error["code"] == "WORSE_THAN_BEFORE"


def test_what_the_margin_allows_is_kept(service: Service) -> None:
    with replay_engine(layout=plan_for_replay().layout, **LIGHT) as url, EngineClient(url) as client:
        measuring = Measuring(seconds=SHORT.seconds, margin=0.5)
        rollout_id, job_id = asked(service, registered(service, url), poor_plan(), measuring=measuring)
        carried_out(service, job_id)
        assert client.placement().layout_hash == trivial_layout().hash
    rollout = rollout_of(service, rollout_id)
    assert rollout.state is RolloutState.APPLIED
    assert rollout.verdict is not None
    assert rollout.verdict["code"] == "KEPT"
    assert 0.05 < rollout.verdict["worse_by"] < 0.5


@pytest.mark.parametrize(
    ("measuring", "options", "code", "warned"),
    [(NO_MEASURING, {}, "NOT_ASKED", False), (Measuring(seconds=0.3), {"passes": 1}, "NO_TRAFFIC", True)],
)
def test_what_was_not_measured_says_so_and_is_kept(
    service: Service, measuring: Measuring, options: dict[str, int], code: str, warned: bool
) -> None:
    with replay_engine(**LIGHT, **options) as url, EngineClient(url) as client:
        if options:
            client.run_steps(100_000)
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay(), measuring=measuring)
        job = carried_out(service, job_id)
    rollout = rollout_of(service, rollout_id)
    assert (job.state, rollout.state, rollout.measured) == (JobState.SUCCEEDED, RolloutState.APPLIED, None)
    assert rollout.verdict is not None
    assert rollout.verdict["code"] == code
    assert rollout.verdict["sentence"].startswith("Not measured: ")
    assert [warning["code"] for warning in rollout.warnings if warning["code"] == code] == [code] * warned


def test_somebody_elses_recording_is_left_alone_and_named(service: Service) -> None:
    with replay_engine(**LIGHT) as url, EngineClient(url) as client:
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay())
        steps = DurableSteps(before=lambda name: record(client) if name.endswith(": measure") else None)
        carried_out(service, job_id, steps)
        assert client.stop_demand().recording is False
        assert client.demand().windows  # theirs, whole
    rollout = rollout_of(service, rollout_id)
    assert rollout.state is RolloutState.APPLIED
    assert rollout.verdict is not None
    assert rollout.verdict["code"] == "ENGINE_BUSY"
    assert "somebody else" in rollout.verdict["sentence"]


def record(client: EngineClient) -> None:
    from profiler.engine.contract_demand import DemandOptions

    client.start_demand(DemandOptions(window_steps=1, owner="somebody else"))


# ------------------------------------------------------------------ what goes wrong


WRONG: dict[str, tuple[Faults, RolloutState, str, str]] = {
    "half a push": (Faults(fail_chunk=3), RolloutState.ROLLED_BACK, "PARTIAL_APPLY", "old"),
    "weights left behind": (
        Faults(left_behind=("w2_weight",)), RolloutState.ROLLED_BACK, "POST_PUSH_CHECK_FAILED", "old",
    ),
    "started anew in mid-push": (Faults(restart_chunk=3), RolloutState.SUPERSEDED, "ENGINE_RESTARTED", "old"),
    "a rank disagrees": (Faults(odd_rank=3), RolloutState.FAILED, "POST_PUSH_CHECK_FAILED", "new"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_goes_wrong_is_told_by_reading_the_engine(service: Service, what: str) -> None:
    faults, state, code, runs = WRONG[what]
    with replay_engine(faults=faults, **STILL) as url, EngineClient(url) as client:
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay(), layers_per_chunk=1)
        job = carried_out(service, job_id)
        seen = client.placement().layout_hash
    rollout = rollout_of(service, rollout_id)
    assert rollout.state is state, rollout.error
    assert rollout.error is not None
    assert rollout.error["code"] == code
    assert (job.state, job.error) == (JobState.FAILED, rollout.error)
    assert rollout.runs_hash == seen == (rollout.from_hash if runs == "old" else rollout.to_hash)


def test_a_push_whose_answer_is_lost_is_found_done(service: Service) -> None:
    with replay_engine(faults=Faults(lose_answer=1), **STILL) as url, EngineClient(url) as client:
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay(), measuring=NO_MEASURING)
        carried_out(service, job_id)
        assert len(client.replayed_pushes()) == 1
    rollout = rollout_of(service, rollout_id)
    assert rollout.state is RolloutState.APPLIED, rollout.error
    assert rollout.result is not None
    assert rollout.result["weights_checked"]


def test_an_engine_that_ends_after_the_push_leaves_it_unconfirmed(service: Service) -> None:
    with replay_engine(faults=Faults(end_after_push=True), **STILL) as url:
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay())
        job = carried_out(service, job_id)
    rollout = rollout_of(service, rollout_id)
    assert (job.state, rollout.state, rollout.runs_hash) == (JobState.FAILED, RolloutState.UNCONFIRMED, None)
    assert rollout.error is not None
    assert rollout.error["code"] == "ENGINE_FAILED"


class Engines:
    """Replay engines that take each other's place at one address."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._open: AbstractContextManager[str] | None = None
        self.url = ""

    def start(self, **options: object) -> str:
        port = urlsplit(self.url).port if self.url else 0
        self._open = replay_engine(**{**STILL, "port": port, **options})
        self.url = self._open.__enter__()
        return self.url

    def end(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None


@pytest.fixture
def engines() -> Iterator[Engines]:
    with ExitStack() as stack:
        found = Engines(stack)
        yield found
        found.end()


def at(step: str, act: Callable[[], object]) -> DurableSteps:
    """Act before a step of the rollout."""
    return DurableSteps(before=lambda name: act() and None if name.endswith(f": {step}") else None)


@pytest.mark.parametrize("step", ["verify", "measure"])
@pytest.mark.parametrize(
    ("then", "state", "code"),
    [
        (None, RolloutState.UNCONFIRMED, "ENGINE_UNREACHABLE"),
        ({}, RolloutState.SUPERSEDED, "ENGINE_RESTARTED"),
        ({"gpus": 4, "slots_per_gpu": 32}, RolloutState.SUPERSEDED, "ENGINE_RESTARTED"),
    ],
    ids=["gone", "started anew", "another ep_size"],
)
def test_an_engine_that_is_another_one_by_then_is_left_alone(
    service: Service, engines: Engines, step: str, then: dict[str, int] | None, state: RolloutState, code: str
) -> None:
    def change() -> None:
        engines.end()
        if then is not None:
            engines.start(**then)

    rollout_id, job_id = asked(service, registered(service, engines.start()), plan_for_replay())
    carried_out(service, job_id, at(step, change))
    rollout = rollout_of(service, rollout_id)
    assert rollout.state is state, rollout.error
    assert rollout.error is not None
    assert rollout.error["code"] == code
    if then is not None:
        with EngineClient(engines.url) as client:
            assert client.placement().layout_hash == rollout.runs_hash
            assert client.replayed_pushes() == []


def test_an_engine_that_comes_up_again_with_the_pushed_layout_keeps_it_unmeasured(
    service: Service, engines: Engines
) -> None:
    def change() -> None:
        engines.end()
        engines.start(layout=plan_for_replay().layout)

    rollout_id, job_id = asked(service, registered(service, engines.start()), plan_for_replay())
    carried_out(service, job_id, at("measure", change))
    rollout = rollout_of(service, rollout_id)
    assert rollout.state is RolloutState.APPLIED, rollout.error
    assert rollout.verdict is not None
    assert rollout.verdict["code"] == "ENGINE_RESTARTED"


def test_an_engine_that_cannot_be_read_is_refused_before_anything_moves(service: Service, engines: Engines) -> None:
    engine_id = registered(service, engines.start())
    engines.end()
    rollout_id, job_id = asked(service, engine_id, plan_for_replay())
    job = carried_out(service, job_id)
    rollout = rollout_of(service, rollout_id)
    assert (job.state, rollout.state, rollout.from_hash) == (JobState.FAILED, RolloutState.REFUSED, None)


# ------------------------------------------------------------------ a worker that dies, and a job around the rollout


STEPS = ("check", "push", "verify", "measure")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_that_dies_at_a_step_leaves_one_push_and_no_loose_end(
    service: Service, step: str, moment: str
) -> None:
    def die(name: str) -> None:
        if name.endswith(f": {step}"):
            raise Killed

    with replay_engine(**(LIGHT if step == "measure" else STILL)) as url, EngineClient(url) as client:
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay())
        steps = DurableSteps(**{moment: die})
        with pytest.raises(Killed):
            carried_out(service, job_id, steps)
        steps.begin_again()
        job = carried_out(service, job_id, steps)
        assert len(client.replayed_pushes()) == 1
    rollout = rollout_of(service, rollout_id)
    assert (job.state, job.attempts, rollout.state) == (JobState.SUCCEEDED, 2, RolloutState.APPLIED)
    assert states_of(service, rollout_id) == ["checking", "pushing", "verifying", "measuring", "applied"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_that_dies_while_it_takes_back_takes_back_once(service: Service, moment: str) -> None:
    def die(name: str) -> None:
        if name.endswith(": take back"):
            raise Killed

    with replay_engine(faults=Faults(fail_chunk=3), **STILL) as url, EngineClient(url) as client:
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay(), layers_per_chunk=1)
        steps = DurableSteps(**{moment: die})
        with pytest.raises(Killed):
            carried_out(service, job_id, steps)
        steps.begin_again()
        carried_out(service, job_id, steps)
        assert [push["status"] for push in client.replayed_pushes()] == ["partial", "applied"]
        rollout = rollout_of(service, rollout_id)
        assert client.placement().layout_hash == rollout.from_hash == rollout.runs_hash
    assert rollout.state is RolloutState.ROLLED_BACK


def test_another_job_carries_rollouts_out_itself_one_after_the_other(service: Service) -> None:
    """A rebalancing job makes the rows without jobs of their own, and its steps have names of their own."""
    with replay_engine(**STILL) as url, EngineClient(url) as client:
        engine_id = registered(service, url)
        _, job_id = asked(service, engine_id, plan_for_replay())  # any job will do
        plan_ids = [ready_plan(service, made, engine_id=engine_id, state=PlanState.PROPOSED)
                    for made in (plan_for_replay(), poor_plan())]  # fmt: skip
        steps = DurableSteps()
        run = running(service, job_id, steps)
        made = [begun_within(service, job_id, plan_id) for plan_id in plan_ids]
        assert [begun_within(service, job_id, plan_id) for plan_id in plan_ids] == made  # asked for again
        first, second = (carry_out(run, rollout_id, progress=(0.5, 1.0)) for rollout_id in made)
        assert client.placement().layout_hash == trivial_layout().hash
        steps.begin_again()
        again = [carry_out(running(service, job_id, steps, attempt=1), rollout_id) for rollout_id in made]
        assert len(client.replayed_pushes()) == 2
    assert (first["state"], second["state"]) == ("applied", "applied")
    assert first["layout_hash"] == plan_for_replay().layout.hash
    assert again == [first, second]
    with service.database.reading() as session:
        assert {plans.find_rollout(session, rollout_id).job_id for rollout_id in made} == {job_id}
        told = [event.data["progress"] for event in jobs.events_after(session, job_id, 0) if event.kind == "progress"]
    assert min(told) >= 0.5


def running(service: Service, job_id: str, steps: DurableSteps, *, attempt: int = 1) -> JobRun:
    with service.database.writing() as session:
        job = jobs.lock(session, job_id)
        job.worker, job.attempts, job.state = WORKER, attempt, JobState.RUNNING
        return JobRun(service, job_id, job.subject_id, WORKER, steps, attempt)


def begun_within(service: Service, job_id: str, plan_id: str) -> str:
    with service.database.writing() as session:
        plan = plans.find(session, plan_id)
        if plan.state is PlanState.PROPOSED:
            plan_service.decide(session, ACTOR, plan, PlanState.APPROVED, why="a gate was open")
        return rollout_service.begin_within(
            session, ACTOR, job_id=job_id, plan=plan, engine=None, pace={}, measuring=NO_MEASURING, reason="cycle"
        ).id


@pytest.mark.parametrize("step", ["check", "push", "verify", "measure"])
def test_a_job_is_cancelled_before_layers_move_and_never_after(service: Service, step: str) -> None:
    refused: list[str] = []

    def cancel() -> None:
        with service.database.writing() as session:
            try:
                job_service.cancel(session, ACTOR, jobs.lock(session, job_id), why="changed my mind")
            except WrongState as error:
                refused.append(error.detail)

    with replay_engine(**STILL) as url, EngineClient(url) as client:
        rollout_id, job_id = asked(service, registered(service, url), plan_for_replay(), measuring=Measuring(0.3, 1.0))
        job = carried_out(service, job_id, at(step, cancel))
        pushes = len(client.replayed_pushes())
    state = rollout_of(service, rollout_id).state
    if step == "check":
        assert (job.state, state, pushes, refused) == (JobState.CANCELLED, RolloutState.CANCELLED, 0, [])
    else:
        assert (job.state, state, pushes, len(refused)) == (JobState.SUCCEEDED, RolloutState.APPLIED, 1, 1)


def test_every_chunk_that_is_done_is_told(service: Service) -> None:
    with replay_engine(**STILL) as url:
        _, job_id = asked(
            service,
            registered(service, url),
            plan_for_replay(),
            measuring=NO_MEASURING,
            layers_per_chunk=2,
            pause_s=1.2,
        )
        carried_out(service, job_id)
    with service.database.reading() as session:
        told = [event.data["step"] for event in jobs.events_after(session, job_id, 0) if event.kind == "progress"]
    chunks = [step for step in told if step.startswith("pushing: ")]
    done = [re.fullmatch(r"pushing: chunk (\d) of 3 is done, (\d) of 6 layers are new", step) for step in chunks]
    assert done
    numbers = [(int(found[1]), int(found[2])) for found in done if found]
    assert len(numbers) == len(chunks)
    assert numbers == sorted(set(numbers))
    assert all(layers == 2 * chunk for chunk, layers in numbers)
