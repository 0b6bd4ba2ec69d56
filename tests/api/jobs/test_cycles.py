"""Every way a cycle can end, against the replay engine, with its job carried out by hand."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api import planning
from api.jobs import rebalance_steps, rebalance_work, trace_works
from api.jobs.rebalance_cycle import RunningCycle, open_cycle
from api.jobs.running import JobRun
from api.rebalancing.gates import Gates, Mode
from api.rebalancing.hours import DAYS, Hours
from api.service import plans as plan_service
from api.service.context import Service
from api.states import JobState, Outcome, PlanState, RolloutState, TraceState
from api.store import decisions, jobs, plans, schedules, traces
from api.store.models import Decision
from placement.layout import Layout
from profiler.engine.client import EngineClient
from profiler.engine.contract_demand import DemandOptions
from profiler.engine.push import push
from profiler.replay.options import Faults
from tests.api.jobs.by_hand import Memory, attempt, carried_out, tasks_here  # noqa: F401  (fixture)
from tests.api.schedules import OPEN, an_engine, decided, decisions_of, register, run_now, schedule_of, scheduled, stop
from tests.api.services import ACTOR, GPUS, replay_engine, service_on

pytestmark = [pytest.mark.usefixtures("tasks_here"), pytest.mark.one_database]


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_on(database_url, tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def lone_service(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Service]:
    """For what does not depend on the database."""
    file = tmp_path / "moeplan.db"
    file.write_bytes(migrated_sqlite.read_bytes())
    with service_on(f"sqlite:///{file}", tmp_path / "data") as opened:
        yield opened


def cycle(service: Service, schedule_id: str, *, ends: JobState = JobState.SUCCEEDED) -> Decision:
    """Run a cycle and return its decision."""
    job = carried_out(service, run_now(service, schedule_id).id)
    assert job.state is ends, job.error
    return decided(service, job.id)


def test_a_proposal_waits_for_approval_and_a_newer_one_takes_its_place(service: Service) -> None:
    with replay_engine() as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url))
        before = client.placement().layout_hash
        first, second = cycle(service, schedule_id), cycle(service, schedule_id)
        assert client.placement().layout_hash == before
    assert (first.outcome, first.code, first.rollout_id) == (Outcome.PROPOSED, "PLAN_PROPOSED", None)
    assert first.sentence.startswith("A plan waits for approval: on the held-out windows ")
    assert first.numbers["gain"] > 0
    assert first.numbers["held_out_windows"] == ["window 4", "window 5"]
    with service.database.writing() as session:
        older, newer = (plans.find(session, str(each.plan_id)) for each in (first, second))
        assert (older.state, newer.state) == (PlanState.REJECTED, PlanState.PROPOSED)
        plan_service.decide(session, ACTOR, newer, PlanState.APPROVED, why="looks good")
        assert newer.state is PlanState.APPROVED
    assert schedule_of(service, schedule_id).last_success_at == second.created_at


@pytest.mark.parametrize("plan_workers", [3, "ray"])
def test_a_cycles_plan_is_searched_by_the_workers_that_are_set(
    migrated_sqlite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan_workers: int | str
) -> None:
    file = tmp_path / "moeplan.db"
    file.write_bytes(migrated_sqlite.read_bytes())
    asked: list[Any] = []

    @contextmanager
    def none_started(workers: Any) -> Iterator[None]:
        asked.append(workers)
        yield None

    monkeypatch.setattr(planning, "open_workers", none_started)
    with (
        service_on(f"sqlite:///{file}", tmp_path / "data", plan_workers=plan_workers) as service,
        replay_engine() as url,
    ):
        cycle(service, scheduled(service, register(service, url)))
    assert asked == [plan_workers]


def test_what_is_applied_is_measured_and_then_traffic_has_not_drifted(service: Service) -> None:
    with replay_engine() as url, EngineClient(url) as client:
        rollout = {"measure_seconds": 0.5, "roll_back_margin": 10.0}
        gates = replace(OPEN, least_drift=0.3)
        schedule_id = scheduled(service, register(service, url), mode=Mode.APPLY, rollout=rollout, gates=gates)
        applied, again = cycle(service, schedule_id), cycle(service, schedule_id)
        assert client.placement().generation == 1
    assert (applied.outcome, applied.code) == (Outcome.APPLIED, "PLAN_APPLIED")
    assert applied.numbers["rollout"]["measured"] is not None
    assert applied.numbers["rollout"]["predicted"] is not None
    assert applied.numbers["drift"]["mean"] is None
    assert again.outcome is Outcome.NOTHING
    assert again.code == "DRIFT_BELOW_THRESHOLD"
    assert again.plan_id is None
    assert 0 < again.numbers["drift"]["mean"] < 0.3
    assert again.numbers["drift"]["running_plan_id"] == applied.plan_id


def test_a_push_that_leaves_weights_behind_is_taken_back(service: Service) -> None:
    """Case U09 within a cycle."""
    with replay_engine(faults=Faults(left_behind=("w13_weight",))) as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url), mode=Mode.APPLY)
        before = client.placement().layout_hash
        decision = cycle(service, schedule_id)
        assert client.placement().layout_hash == before
    with service.database.reading() as session:
        assert decisions.taken_back_in_row(session, decision.engine_id) == 1
    assert (decision.outcome, decision.code) == (Outcome.ROLLED_BACK, "POST_PUSH_CHECK_FAILED")
    assert decision.sentence.startswith("A plan was pushed and taken back: ")
    with service.database.reading() as session:
        assert plans.find(session, str(decision.plan_id)).state is PlanState.REJECTED
        assert plans.find_rollout(session, str(decision.rollout_id)).state is RolloutState.ROLLED_BACK


def test_gates_that_need_no_recording_cost_the_engine_nothing(lone_service: Service) -> None:
    service = lone_service
    nobody = "http://127.0.0.1:9"
    with service.database.reading() as session:
        today = schedules.clock(session)
    closed = Hours((DAYS[(today.weekday() + 3) % 7],), "00:00", "00:01")
    schedule_id = scheduled(service, register(service, nobody), gates=replace(OPEN, maintenance_hours=(closed,)))
    decision = cycle(service, schedule_id)
    assert (decision.outcome, decision.code) == (Outcome.SKIPPED, "OUTSIDE_MAINTENANCE_HOURS")
    assert (decision.trace_id, decision.plan_id) == (None, None)
    assert [gate["gate"] for gate in decision.numbers["gates"]] == ["cool_down", "maintenance_hours"]
    assert schedule_of(service, schedule_id).last_success_at is None


def test_a_change_of_the_layout_is_followed_by_a_pause(lone_service: Service) -> None:
    service = lone_service
    with replay_engine() as url:
        gates = replace(OPEN, cool_down_s=3600.0)
        schedule_id = scheduled(service, register(service, url), mode=Mode.APPLY, gates=gates)
        assert cycle(service, schedule_id).outcome is Outcome.APPLIED
        decision = cycle(service, schedule_id)
    assert (decision.outcome, decision.code, decision.trace_id) == (Outcome.SKIPPED, "COOLING_DOWN", None)


@pytest.mark.parametrize(
    ("gates", "code", "outcome"),
    [
        (replace(OPEN, least_tokens=10**12), "TOO_FEW_TOKENS", Outcome.SKIPPED),
        (replace(OPEN, least_gain=0.9), "GAIN_BELOW_THRESHOLD", Outcome.NOTHING),
        (replace(OPEN, most_moved_bytes=2**40), "MOVES_ABOVE_BUDGET", Outcome.NOTHING),
    ],
    ids=["tokens", "gain", "bytes of experts that are not known"],
)
def test_a_closed_gate_leaves_the_layout_and_rejects_the_plan(
    lone_service: Service, gates: Gates, code: str, outcome: Outcome
) -> None:
    service = lone_service
    with replay_engine() as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url), mode=Mode.APPLY, gates=gates)
        decision = cycle(service, schedule_id)
        assert client.placement().generation == 0
    assert (decision.code, decision.outcome, decision.rollout_id) == (code, outcome, None)
    assert next(gate["code"] for gate in decision.numbers["gates"] if not gate["open"]) == code
    with service.database.reading() as session:
        assert traces.find(session, str(decision.trace_id)).state is TraceState.READY
        if decision.plan_id is not None:
            assert plans.find(session, decision.plan_id).state is PlanState.REJECTED


def test_a_budget_of_moves_shapes_the_plan(lone_service: Service) -> None:
    service = lone_service
    with replay_engine() as url:
        gates = replace(OPEN, most_moved_slots=100)
        decision = cycle(service, scheduled(service, register(service, url), gates=gates))
    assert decision.outcome is Outcome.PROPOSED, decision.sentence
    assert 0 < decision.numbers["moved_slots"] <= 100


def test_a_recording_with_a_hole_leads_to_no_push(lone_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service = lone_service
    whole = trace_works.run_task

    def with_a_hole(name: str, *args: Any, **kwargs: Any) -> Any:
        made = whole(name, *args, **kwargs)
        return {**made, "warnings": [{"code": "WINDOWS_LOST", "detail": "3 windows of 6 were lost."}]}

    monkeypatch.setattr(trace_works, "run_task", with_a_hole)
    with replay_engine() as url, EngineClient(url) as client:
        decision = cycle(service, scheduled(service, register(service, url), mode=Mode.APPLY))
        assert client.placement().generation == 0
    assert (decision.outcome, decision.code, decision.plan_id) == (Outcome.SKIPPED, "RECORDING_PARTIAL", None)
    assert decision.sentence == "The layout stays: the recording is not good enough, windows were lost (WINDOWS_LOST)."


def test_an_engine_without_traffic_and_one_that_somebody_records_are_left_alone(lone_service: Service) -> None:
    """Cases P13 and P37 within a cycle: nothing is planned from nothing, and nobody's recording is taken."""
    service = lone_service
    with replay_engine() as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url), capture={"seconds": 0.5, "window_seconds": 0.1})
        client.start_demand(DemandOptions(window_steps=1000, owner="somebody else"))
        busy = cycle(service, schedule_id)
        assert client.stop_demand().owner == "somebody else"
    with replay_engine(passes=1, prefill_tokens=10**6) as url, EngineClient(url):
        quiet_id = scheduled(
            service, register(service, url, name="quiet"), capture={"seconds": 0.5, "window_seconds": 0.1}
        )
        time.sleep(2.0)
        empty = cycle(service, quiet_id)
    assert (busy.outcome, busy.code) == (Outcome.SKIPPED, "ENGINE_BUSY")
    assert (empty.outcome, empty.code) == (Outcome.SKIPPED, "EMPTY_PROFILE")
    with service.database.reading() as session:
        for decision in (busy, empty):
            assert traces.find(session, str(decision.trace_id)).state is TraceState.FAILED


def test_an_engine_that_does_not_answer_ends_the_cycle_with_an_error(service: Service) -> None:
    schedule_id = scheduled(service, register(service, "http://127.0.0.1:9"))
    decision = cycle(service, schedule_id, ends=JobState.FAILED)
    assert (decision.outcome, decision.code) == (Outcome.FAILED, "ENGINE_UNREACHABLE")
    assert decision.sentence.startswith("The cycle ended with an error: GET http://127.0.0.1:9/")
    assert decision.sentence.endswith(" Nothing was pushed; the engine keeps its layout.")
    assert decision.numbers["error"]["code"] == "ENGINE_UNREACHABLE"
    assert schedule_of(service, schedule_id).last_success_at is None


def test_a_fault_of_our_own_is_a_decision_too(lone_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service = lone_service
    monkeypatch.setattr(rebalance_work, "read_clock", lambda *_: 1 / 0)
    decision = cycle(service, scheduled(service, register(service, "http://127.0.0.1:9")), ends=JobState.FAILED)
    assert (decision.outcome, decision.code) == (Outcome.FAILED, "INTERNAL_ERROR")


def test_a_worker_that_dies_before_and_after_every_step_pushes_once(service: Service) -> None:
    """The whole cycle, with a death before each step and another one after it was done but not remembered."""
    deaths: set[tuple[str, str]] = set()

    def once(where: str) -> Any:
        def dies(name: str) -> bool:
            first = (where, name) not in deaths
            deaths.add((where, name))
            return first

        return dies

    memory = Memory(dies_before=once("before"), dies_within=once("within"))
    with replay_engine() as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url), mode=Mode.APPLY)
        job_id = run_now(service, schedule_id).id
        attempts = next(number for number in itertools.count(1) if attempt(service, job_id, memory))
        after = client.placement()
    assert attempts == 2 * len(memory.names) + 1
    assert attempts > 20
    (decision,) = decisions_of(service)
    assert decision.outcome is Outcome.APPLIED, decision.sentence
    assert after.generation == 1
    with service.database.reading() as session:
        rollout = plans.find_rollout(session, str(decision.rollout_id))
        assert (rollout.state, rollout.to_hash) == (RolloutState.APPLIED, after.layout_hash)
        assert jobs.find(session, job_id).attempts == attempts


def died_before_the_push(service: Service, schedule_id: str) -> tuple[str, Memory]:
    """Return a cycle whose worker died when all gates were open and nothing had moved."""
    memory = Memory(dies_before=lambda name: name.startswith("rollout"))
    job_id = run_now(service, schedule_id).id
    assert not attempt(service, job_id, memory)
    memory.dies_before = lambda name: False
    return job_id, memory


def test_what_was_recorded_long_ago_is_not_pushed_by_whoever_takes_the_cycle_over(lone_service: Service) -> None:
    service = lone_service
    with replay_engine() as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url), mode=Mode.APPLY)
        job_id, memory = died_before_the_push(service, schedule_id)
        with service.database.writing() as session:
            row = schedules.find_cycle(session, jobs.find(session, job_id).subject_id)
            row.settings = {**row.settings, "gates": replace(OPEN, longest_recording_age_s=1.0).to_json()}
        time.sleep(1.1)
        assert attempt(service, job_id, memory)
        assert client.placement().generation == 0
    decision = decided(service, job_id)
    assert (decision.outcome, decision.code) == (Outcome.SKIPPED, "RECORDING_STALE")
    with service.database.reading() as session:
        assert plans.find(session, str(decision.plan_id)).state is PlanState.REJECTED
        assert plans.find_rollout(session, str(decision.rollout_id)).state is RolloutState.CANCELLED


def test_an_engine_that_somebody_changed_meanwhile_is_left_alone(lone_service: Service) -> None:
    service = lone_service
    with replay_engine() as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url), mode=Mode.APPLY)
        job_id, memory = died_before_the_push(service, schedule_id)
        present = client.placement()
        turned_LP = np.roll(present.map_LP, present.slots // GPUS, axis=1)
        other = Layout(turned_LP, gpus=GPUS, experts=present.experts)
        push(client, other, history=None)
        assert attempt(service, job_id, memory)
        assert client.placement().layout_hash == other.hash
    decision = decided(service, job_id)
    assert (decision.outcome, decision.code) == (Outcome.SKIPPED, "ENGINE_CHANGED")
    assert other.hash[:12] in decision.sentence


def test_a_cycle_that_is_cancelled_leaves_nothing_half_done(lone_service: Service) -> None:
    service = lone_service
    with replay_engine() as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url), mode=Mode.APPLY)
        job_id, memory = died_before_the_push(service, schedule_id)
        with service.database.reading() as session:
            job = jobs.find(session, job_id)
        stop(service, job)
        assert attempt(service, job_id, memory)
        assert client.placement().generation == 0
    decision = decided(service, job_id)
    assert (decision.outcome, decision.code) == (Outcome.SKIPPED, "CYCLE_CANCELLED")
    with service.database.reading() as session:
        assert plans.find(session, str(decision.plan_id)).state is PlanState.REJECTED
        assert plans.find_rollout(session, str(decision.rollout_id)).state is RolloutState.CANCELLED


def test_settings_that_change_meanwhile_do_not_concern_a_cycle_that_runs(lone_service: Service) -> None:
    service = lone_service
    with replay_engine() as url, EngineClient(url) as client:
        schedule_id = scheduled(service, register(service, url), mode=Mode.PROPOSE)
        job_id = run_now(service, schedule_id).id
        with service.database.writing() as session:
            schedules.lock(session, schedule_id).mode = Mode.APPLY
        assert attempt(service, job_id, Memory())
        assert client.placement().generation == 0
    assert decided(service, job_id).outcome is Outcome.PROPOSED


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"push_in_progress": True}, "somebody is changing its layout"),
        ({"weight_updates": 1}, "its weights were updated"),
        ({"generation": 2}, "it was started anew, or its layout was changed and changed back"),
    ],
)
def test_what_changed_in_an_engine_is_said(
    lone_service: Service, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    """Case U18: new weights make what was recorded and planned before them worthless."""
    with replay_engine() as url, EngineClient(url) as client:
        present = client.placement()
    names = ("layout_hash", "generation", "weight_updates", "ep_size")
    before = {name: getattr(present, name) for name in names}
    monkeypatch.setattr(rebalance_steps, "_placement", lambda *_: replace(present, **changes))
    job_id = run_now(lone_service, scheduled(lone_service, an_engine(lone_service, "e1"))).id
    run = JobRun(lone_service, job_id, "", "by hand", Memory(), 1)
    assert rebalance_steps.how_engine_changed(run, open_cycle_of(lone_service, job_id), before) == said


def open_cycle_of(service: Service, job_id: str) -> RunningCycle:
    with service.database.reading() as session:
        subject_id = jobs.find(session, job_id).subject_id
    return open_cycle(JobRun(service, job_id, subject_id, "by hand", Memory(), 1))
