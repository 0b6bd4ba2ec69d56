"""What every job has in common: taking it up, steps that are done once, telling how far it is, ending it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn, Protocol

import structlog

from api.errors import DatabaseUnreachable, JobStopped
from api.jobs.durable import JobLeft, Json, Steps
from api.jobs.task_process import TaskFailed
from api.service.context import Service
from api.service.error_json import error_json
from api.service.jobs import end
from api.service.subjects import give_up
from api.states import JobKind, JobState
from api.store import jobs
from api.store.audit import Actor, change_state
from api.store.columns import now
from api.store.database import Session
from api.store.models import Job
from placement.errors import CodedError
from profiler.files import disk_full

REPORT_EVERY_S = 1.0
"""Progress is written down at most so often."""

INTERNAL_ERROR = "INTERNAL_ERROR"

log = structlog.get_logger("moeplan.jobs")

Finish = Callable[[Session], Json]
"""Writes down what a job has made, in the transaction that ends it; returns the job's result."""


class StepFailed(Exception):
    """A step ended with an error, now or when it was first run."""

    def __init__(self, error: Json) -> None:
        self.error = error
        super().__init__(str(error.get("code")))


@dataclass
class JobRun:
    """One attempt at a job, by one worker."""

    service: Service
    job_id: str
    subject_id: str
    worker_id: str
    steps: Steps
    attempt: int
    span: tuple[float, float] = (0.0, 1.0)
    """Part of the job's progress that is reported here."""

    _reported_s: float = field(default=float("-inf"), init=False)
    _reported_step: str = field(default="", init=False)
    _told: list[tuple[str, Json]] = field(default_factory=list, init=False)
    _wrote_s: float = field(default=float("-inf"), init=False)

    @property
    def actor(self) -> Actor:
        return Actor(f"job:{self.job_id}", job_id=self.job_id)

    def about(self, subject_id: str, *, span: tuple[float, float]) -> JobRun:
        """Return the same attempt for a part of the job that makes something of its own."""
        return replace(self, subject_id=subject_id, span=span)

    def step(self, name: str, action: Callable[[], Json]) -> Json:
        """Run a step once: when the job is taken up again, return what it returned then.

        An error is a result too, so that a step which was refused is not tried again by accident.

        Raises
        ------
        StepFailed
        """
        self.require_going_on()
        outcome = self.steps(name, lambda: _outcome(action, job_id=self.job_id, step=name))
        if "error" in outcome:
            raise StepFailed(outcome["error"])
        value: Json = outcome["value"]
        return value

    def report(self, progress: float, step: str) -> None:
        """Say how far the job is, where the database answers. Raises :class:`JobStopped` when it must not go on."""
        now_s = time.monotonic()
        if step == self._reported_step and now_s - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s, self._reported_step = now_s, step
        begin, end = self.span
        with self._where_it_answers(), self.service.database.writing() as session:
            self.require_mine(session)
            jobs.report(session, self.job_id, progress=begin + (end - begin) * progress, step=step)

    def tell(self, kind: str, data: Json) -> None:
        """Add an event for those who follow the job; written down with others, at most once a second."""
        self._told.append((kind, data))
        self._write_down_when_due()

    def write_down(self) -> None:
        """Write down the events that wait. Raises :class:`JobStopped` when the job must not go on."""
        told, self._wrote_s = list(self._told), time.monotonic()
        if not told:
            return
        with self._where_it_answers():
            with self.service.database.writing() as session:
                self.require_mine(session)
                for kind, data in told:
                    jobs.say(session, self.job_id, kind, **data)
            del self._told[: len(told)]

    def _write_down_when_due(self) -> None:
        if self._told and time.monotonic() - self._wrote_s >= REPORT_EVERY_S:
            self.write_down()

    def require_going_on(self) -> None:
        """Raise :class:`JobStopped` when the job was cancelled; end when it is another worker's by now."""
        self._write_down_when_due()
        with self.service.database.reading() as session:
            self._check(jobs.find(session, self.job_id))

    def require_not_stopped(self) -> None:
        """As :meth:`require_going_on`, in the middle of long work: it goes on while the database does not answer."""
        with self._where_it_answers():
            self.require_going_on()

    @contextmanager
    def _where_it_answers(self) -> Iterator[None]:
        """Let nothing that can wait end long work: its result is written down when the database is there again."""
        try:
            yield
        except DatabaseUnreachable as error:
            log.warning("work goes on without its database for now", job_id=self.job_id, detail=error.detail)

    def require_mine(self, session: Session) -> None:
        """Raise when the job was cancelled, or is another worker's by now."""
        self._check(jobs.lock(session, self.job_id))

    def _check(self, job: Job) -> None:
        if job.cancel_asked_at is not None:
            raise JobStopped("the job was cancelled.")
        if job.worker != self.worker_id or job.attempts != self.attempt:
            raise JobTakenOver


class JobTakenOver(BaseException):
    """Another worker has the job now, because this one was taken for dead: write nothing."""


class Work(Protocol):
    """How jobs of one kind are done."""

    def __call__(self, run: JobRun) -> Finish: ...


def run_job(service: Service, worker_id: str, works: Mapping[JobKind, Work], job_id: str, steps: Steps) -> None:
    """Carry a job out from where it is, and end it.

    Raises
    ------
    JobLeft
        The database was lost, or another worker has the job: whatever was not written down is done again, or by it.
    """
    with structlog.contextvars.bound_contextvars(job_id=job_id, worker=worker_id):
        try:
            job = _take_up(service, worker_id, job_id)
            if job is None:
                return
            run = JobRun(service, job_id, job.subject_id, worker_id, steps, job.attempts)
            log.info("job begins", kind=str(job.kind), attempt=job.attempts)
            try:
                finish = works[job.kind](run)
                _succeed(service, run, finish)
            except JobStopped:
                _end(service, run, JobState.CANCELLED, error=None)
            except StepFailed as failed:
                cancelled = failed.error.get("code") == JobStopped.code
                _end(
                    service,
                    run,
                    JobState.CANCELLED if cancelled else JobState.FAILED,
                    error=None if cancelled else failed.error,
                )
        except JobTakenOver as taken:
            log.warning("job was taken over by another worker")
            raise JobLeft from taken  # an end here would be the queue's, which then never takes the job up again
        except DatabaseUnreachable as error:
            _leave(error)
        except Exception:
            # Whatever it is, the job must not stay behind as running for ever.
            log.exception("job broke")
            try:
                _break(service, worker_id, job_id)
            except DatabaseUnreachable as error:
                _leave(error)


def _leave(error: DatabaseUnreachable) -> NoReturn:
    log.warning("job is left until its database is there again", detail=error.detail)
    raise JobLeft from error


def _take_up(service: Service, worker_id: str, job_id: str) -> Job | None:
    with service.database.writing() as session:
        job = jobs.lock(session, job_id)
        if job.state.ended:
            return None
        if job.state is JobState.QUEUED:
            change_state(session, job, JobState.RUNNING, Actor(f"worker:{worker_id}", job_id=job_id))
            job.started_at = now()
            jobs.say(session, job_id, "state", state=str(JobState.RUNNING), sentence=JobState.RUNNING.sentence)
        else:
            why = "its worker lost the database" if job.worker == worker_id else "its worker died"
            jobs.say(session, job_id, "resumed", after=why, attempt=job.attempts + 1)
        job.worker = worker_id
        job.attempts += 1
        return job


def _succeed(service: Service, run: JobRun, finish: Finish) -> None:
    with service.database.writing() as session:
        run.require_mine(session)
        job = jobs.find(session, run.job_id)
        job.result = finish(session)
        job.step = "done"
        end(session, job, JobState.SUCCEEDED, run.actor)
    log.info("job succeeded")


def _end(service: Service, run: JobRun, state: JobState, *, error: Json | None) -> None:
    with service.database.writing() as session:
        job = jobs.lock(session, run.job_id)
        if job.worker != run.worker_id or job.attempts != run.attempt:
            raise JobTakenOver
        job.error = error
        why = "cancelled" if error is None else str(error["detail"])
        give_up(session, job, run.actor, error=error, why=why)
        end(session, job, state, run.actor, why=why)
    log.info("job ended", state=str(state), **({} if error is None else {"code": error["code"]}))


def _break(service: Service, worker_id: str, job_id: str) -> None:
    error: Json = {"code": INTERNAL_ERROR, "detail": "moeplan failed at this job; its log says how.", "remedies": []}
    with service.database.writing() as session:
        job = jobs.lock(session, job_id)
        if job.state.ended or job.worker != worker_id:
            return
        job.error = error
        actor = Actor(f"job:{job_id}", job_id=job_id)
        give_up(session, job, actor, error=error, why=error["detail"])
        end(session, job, JobState.FAILED, actor, why=error["detail"])


def _outcome(action: Callable[[], Json], *, job_id: str, step: str) -> Json:
    try:
        return {"value": action()}
    except DatabaseUnreachable as error:
        _leave(error)  # no result: the step is done again
    except CodedError as error:
        return {"error": error_json(error)}
    except TaskFailed as failed:
        return {"error": failed.error}
    except Exception as error:
        full = disk_full(error) if isinstance(error, OSError) else None
        if full is not None:
            return {"error": error_json(full)}
        log.exception("step broke", step=step)
        return {"error": {"code": INTERNAL_ERROR, "detail": "moeplan failed at this step; its log says how."}}
