"""Jobs carried out in this process, step by step, so that a test can cut in between two of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from api.jobs.durable import Json
from api.jobs.running import run_job
from api.jobs.worker import WORKS
from api.service import engines as engine_service
from api.service import plans as plan_service
from api.service import rollouts as rollout_service
from api.service.context import Service
from api.service.rollouts import Measuring
from api.states import PlanState
from api.store import plans
from api.store.models import Job, Rollout
from placement.layout import Layout
from placement.plan import Plan as MadePlan
from tests.api.services import ACTOR, job_of, plan_for_replay, ready_plan

WORKER = "in-process"
SHORT = Measuring(seconds=1.0)
LIGHT: dict[str, Any] = {"steps_per_s": 40.0, "prefill_tokens": 512, "running_per_gpu": 24}
"""A replay engine that serves enough to measure by, and leaves the processor to the tests."""

STILL: dict[str, Any] = {"steps_per_s": 0}
"""One that serves nothing, where traffic does not matter."""


class Killed(BaseException):
    """The worker dies here."""


class DurableSteps:
    """Steps that are remembered as the queue remembers them: as JSON, in their order, by their names.

    Parameters
    ----------
    before, after : callable
        Called with a step's name before it runs and after it was remembered; may raise :class:`Killed`.
    """

    def __init__(
        self, before: Callable[[str], None] = lambda name: None, after: Callable[[str], None] = lambda name: None
    ) -> None:
        self.before, self.after = before, after
        self.done: list[tuple[str, str]] = []
        self._position = 0

    def begin_again(self) -> None:
        """Be what a worker finds that takes the job up."""
        self._position = 0
        self.before = self.after = lambda name: None

    def __call__(self, name: str, step: Callable[[], Json]) -> Json:
        if self._position < len(self.done):
            known, outcome = self.done[self._position]
            assert known == name, "the steps of a job that is taken up again come in the same order"
        else:
            assert name not in self.names, "a step's name is its own"
            self.before(name)
            outcome = json.dumps(step(), allow_nan=False)
            self.done.append((name, outcome))
            self.after(name)
        self._position += 1
        read: Json = json.loads(outcome)
        return read

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.done]


def registered(service: Service, url: str) -> str:
    with service.database.writing() as session:
        engine = engine_service.register(
            session, ACTOR, name="replay", url=url, key_reference=None, read_key_reference=None, labels={}, costs=None
        )
    engine_service.read(service, engine.id)
    return engine.id


def asked(
    service: Service, engine_id: str, made: MadePlan, *, measuring: Measuring = SHORT, **pace: Any
) -> tuple[str, str]:
    """Ask for the rollout of a plan; its id and its job's."""
    plan_id = ready_plan(service, made, engine_id=engine_id, state=PlanState.PROPOSED)
    with service.database.writing() as session:
        plan = plans.find(session, plan_id)
        plan_service.decide(session, ACTOR, plan, PlanState.APPROVED, why="looks good")
        rollout, job = rollout_service.begin(
            service, session, ACTOR, plan=plan, engine=None, pace=pace, measuring=measuring, reason="test"
        )
        return rollout.id, job.id


def carried_out(service: Service, job_id: str, steps: DurableSteps | None = None) -> Job:
    """Carry a job out here, to its end."""
    run_job(service, WORKER, WORKS, job_id, steps or DurableSteps())
    return job_of(service.database, job_id)


def rollout_of(service: Service, rollout_id: str) -> Rollout:
    with service.database.reading() as session:
        return plans.find_rollout(session, rollout_id)


def poor_plan() -> MadePlan:
    """Return a plan that promises what the good one does, with a layout that keeps much less at home."""
    made = plan_for_replay()
    return dataclasses.replace(made, layout=trivial_layout())


def trivial_layout() -> Layout:
    """Return the layout that the replay engine starts with when it is given none."""
    made = plan_for_replay().layout
    slot_P = np.arange(made.slots) % made.experts
    return Layout(np.tile(slot_P, (made.layers, 1)), gpus=made.gpus, experts=made.experts)
