"""Schedules for tests: made on a service that is open, run by workers or by hand, and their decisions."""

from __future__ import annotations

from typing import Any

from api.rebalancing.gates import Gates, Mode
from api.service import engines as engine_service
from api.service import jobs as job_service
from api.service import schedules as schedule_service
from api.service.context import Service
from api.store import decisions, engines, jobs, schedules
from api.store.models import Decision, Job, Schedule
from api.store.pages import Paging
from tests.api.services import ACTOR, wait_for

CAPTURE = {"steps": 60, "window_steps": 10}
"""A second or so on the replay engine."""

OPEN = Gates(least_tokens=1, least_gain=0.0, cool_down_s=0.0)
"""Gates that let through whatever is better."""


def register(service: Service, url: str, *, name: str = "replay") -> str:
    """Register an engine and read it."""
    with service.database.writing() as session:
        engine = engine_service.register(
            session, ACTOR, name=name, url=url, key_reference=None, read_key_reference=None, labels={}, costs=None
        )
    engine_service.read(service, engine.id)
    return engine.id


def an_engine(service: Service, name: str) -> str:
    """Register an engine that nobody asks anything."""
    with service.database.writing() as session:
        return engine_service.register(
            session, ACTOR, name=name, url="http://127.0.0.1:9", key_reference=None, read_key_reference=None, labels={},
            costs=None,
        ).id  # fmt: skip


def scheduled(service: Service, engine_id: str, **changes: Any) -> str:
    """Make a schedule that comes due once a day, unless told otherwise."""
    given: dict[str, Any] = {
        "name": "nightly", "times": {"interval_s": 86400.0}, "mode": Mode.PROPOSE, "capture": CAPTURE,
        "planning": {"time_limit_s": 1.0}, "gates": OPEN, "rollout": {"measure_seconds": 0.0},
        "paused": False,
    }  # fmt: skip
    with service.database.writing() as session:
        made = schedule_service.create(session, ACTOR, engine=engines.find(session, engine_id), **(given | changes))
        return made.id


def run_now(service: Service, schedule_id: str) -> Job:
    """Ask for a cycle."""
    with service.database.writing() as session:
        schedule = schedules.lock(session, schedule_id)
        return schedule_service.run_now(service, session, ACTOR, schedule, why="a test asks")


def stop(service: Service, job: Job) -> None:
    """Cancel a cycle."""
    with service.database.writing() as session:
        job_service.cancel(session, ACTOR, jobs.lock(session, job.id), why="a test stops it")


def schedule_of(service: Service, schedule_id: str) -> Schedule:
    with service.database.reading() as session:
        return schedules.find(session, schedule_id)


def decisions_of(service: Service) -> list[Decision]:
    """Return all decisions, oldest first."""
    with service.database.reading() as session:
        return list(reversed(decisions.page(session, Paging(200)).rows))


def decided(service: Service, job_id: str) -> Decision:
    """Wait for the decision of a cycle's job."""

    def found() -> Decision | None:
        return next((each for each in decisions_of(service) if each.job_id == job_id), None)

    decision: Decision = wait_for(found, what=f"the decision of {job_id}")
    return decision
