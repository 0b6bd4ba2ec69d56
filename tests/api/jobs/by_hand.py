"""Jobs carried out by hand in this process: quick, and dying exactly where a test wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

from api.jobs import plan_work, size_work, trace_works
from api.jobs.durable import Json
from api.jobs.running import run_job
from api.jobs.task_process import TaskFailed
from api.jobs.tasks import TASKS
from api.jobs.worker import WORKS
from api.service.context import Service
from api.service.error_json import error_json
from api.store import jobs
from api.store.models import Job
from placement.errors import CodedError


class Death(BaseException):
    """The worker dies here."""


@dataclass
class Memory:
    """What steps have returned, as DBOS keeps it: by their order, which must be the same in every attempt.

    Attributes
    ----------
    dies_before : callable
        Whether the worker dies before a step, by its name.
    dies_within : callable
        The same after the step was done and before it is remembered.
    """

    dies_before: Callable[[str], bool] = lambda name: False
    dies_within: Callable[[str], bool] = lambda name: False
    done: list[tuple[str, Json]] = field(default_factory=list)
    at: int = 0

    def __call__(self, name: str, step: Callable[[], Json]) -> Json:
        if self.at < len(self.done):
            known, outcome = self.done[self.at]
            assert known == name, f"step {self.at} was {known!r} in the attempt before and is {name!r} now"
        else:
            if self.dies_before(name):
                raise Death
            outcome = step()
            if self.dies_within(name):
                raise Death
            self.done.append((name, outcome))
        self.at += 1
        return outcome

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.done]


def attempt(service: Service, job_id: str, memory: Memory) -> bool:
    """Take a job up once; return whether the worker survived."""
    memory.at = 0
    try:
        run_job(service, "by hand", WORKS, job_id, memory)
    except Death:
        return False
    return True


def carried_out(service: Service, job_id: str) -> Job:
    """Carry a job out and return it as it ended."""
    assert attempt(service, job_id, Memory())
    with service.database.reading() as session:
        job = jobs.find(session, job_id)
    assert job.state.ended
    return job


@dataclass(frozen=True)
class _Report:
    """What a task is given to tell how it goes."""

    progress: Callable[[float, str], None]
    on_event: Callable[[str, Json], None] | None

    def __call__(self, share: float, step: str) -> None:
        self.progress(share, step)

    def event(self, kind: str, data: Json) -> None:
        if self.on_event is not None:
            self.on_event(kind, data)


@pytest.fixture
def tasks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in this process what workers run in a process beside them, which takes seconds to start."""
    for module in (trace_works, plan_work, size_work):
        monkeypatch.setattr(module, "run_task", _run_here)


def _run_here(
    name: str,
    request: Json,
    *,
    on_progress: Callable[[float, str], None],
    require_going_on: Callable[[], None],
    grace_s: float,
    on_event: Callable[[str, Json], None] | None = None,
) -> Any:
    try:
        return import_module(TASKS[name]).run(request, _Report(on_progress, on_event))
    except CodedError as error:
        raise TaskFailed(error_json(error)) from error
