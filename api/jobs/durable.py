"""The only module that knows DBOS: a queue of jobs in the service's own database, and steps that are done once.

What DBOS gives, as tried with several processes on SQLite and on PostgreSQL (``tests/api/jobs``): a job is queued in
the transaction that makes it; one worker gets it; of every engine one job runs at a time, over all workers; a step that
has ended is not run again, one that was cut off is; a worker that was taken for dead cannot write a result any more.
What it does not give: it takes over the jobs of a dead worker only when told to (:meth:`Executor.take_over`), and it
forgets a job of a living one whose connection was cut while a step was written down (:meth:`Executor.take_up_left`).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import structlog
from dbos import DBOS, DBOSClient, DBOSConfig
from dbos._error import DBOSException
from dbos._serialization import DBOSPortableJSON
from dbos._sys_db import WorkflowStatusString
from sqlalchemy import Table, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.errors import DatabaseOutdated, DatabaseUnreachable

APPLICATION = "moeplan"
QUEUE = "jobs"
WORKFLOW = "job"

STEPS_VERSION = "2"
"""Rises, a whole number, when a job's steps change so that one begun by an older moeplan cannot go on. While a worker
of that older one is left, such a job waits for it (:mod:`api.jobs.older_jobs`)."""

POLL_S = 0.5

Json = dict[str, Any]

log = structlog.get_logger("moeplan.jobs")


class Steps(Protocol):
    """Runs a step of a job, or returns what it returned when it was run before."""

    def __call__(self, name: str, step: Callable[[], Json]) -> Json: ...


RunJob = Callable[[str, Steps], None]
"""Carries out a job by its id; called again, with the steps done so far, when its worker died."""


class JobLeft(BaseException):
    """The database was lost in the middle of a job, or the job was, to another worker: nothing is written, and the job
    is taken up where it was.

    No :class:`Exception`, because DBOS would keep that as the job's end.
    """


def upgrade(url: URL) -> None:
    """Make or update DBOS's own tables. Raises :class:`DatabaseUnreachable`."""
    _quiet()
    try:
        DBOS.migrate(_text(url))
    except (SQLAlchemyError, DBOSException) as error:
        raise DatabaseUnreachable(f"the tables of the job queue cannot be made: {_first_line(error)}.") from error


class JobQueue:
    """Puts jobs into the queue; used by the API, which carries none out."""

    def __init__(self, url: URL) -> None:
        _quiet()
        try:
            self._client = DBOSClient(
                system_database_url=_text(url),
                serializer=DBOSPortableJSON,
                application_name=APPLICATION,
                retry_connection_errors=False,
            )
        except (SQLAlchemyError, DBOSException) as error:
            raise DatabaseOutdated(
                f"the job queue cannot be used: {_first_line(error)}; run moeplan db upgrade."
            ) from error

    def enqueue(self, session: Session, job_id: str, *, engine_id: str | None) -> None:
        """Queue a job in the transaction of ``session``; of one engine, one job runs at a time."""
        self._client.enqueue_in_transaction(
            session,
            {
                "workflow_name": WORKFLOW,
                "queue_name": QUEUE,
                "workflow_id": job_id,
                "queue_partition_key": engine_id or job_id,
                "app_version": STEPS_VERSION,
            },
            job_id,
        )

    def forget(self, job_ids: Sequence[str]) -> None:
        """Forget the steps of jobs that have ended: they will not be taken up again."""
        self._client.delete_workflows(list(job_ids))

    def of_older_steps(self) -> Sequence[str]:
        """Return jobs in the queue, or in somebody's hands, that were queued by a moeplan with older steps."""
        table, versions = self._status, [str(version) for version in range(int(STEPS_VERSION))]
        query = select(table.c.workflow_uuid).where(
            table.c.status.in_([WorkflowStatusString.ENQUEUED.value, WorkflowStatusString.PENDING.value]),
            table.c.application_version.in_(versions),
        )
        with self._client._sys_db.engine.connect() as connection:
            return connection.scalars(query).all()

    def renew(self, job_ids: Sequence[str]) -> int:
        """Let jobs that nobody has begun be taken by workers of this version; return how many there were."""
        table = self._status
        change = update(table).where(
            table.c.workflow_uuid.in_(job_ids), table.c.status == WorkflowStatusString.ENQUEUED.value
        )
        with self._client._sys_db.engine.begin() as connection:
            return connection.execute(change.values(application_version=STEPS_VERSION)).rowcount

    @property
    def _status(self) -> Table:
        table: Table = self._client._sys_db.tables.workflow_status
        return table

    def close(self) -> None:
        self._client.destroy()


class Executor:
    """Carries jobs out in this process, a few at a time. There is one in a process.

    Parameters
    ----------
    url
    worker_id
        A worker that starts with the id of one that died goes on with its jobs.
    run
        Must not raise, but for :class:`JobLeft`: what goes wrong with a job is the job's result.
    jobs_at_a_time
    """

    def __init__(self, url: URL, *, worker_id: str, run: RunJob, jobs_at_a_time: int) -> None:
        _quiet()
        config: DBOSConfig = {
            "name": APPLICATION,
            "system_database_url": _text(url),
            "executor_id": worker_id,
            "application_version": STEPS_VERSION,
            "serializer": DBOSPortableJSON,  # the default one would unpickle what is in the database
            "run_migrations": False,
            "use_listen_notify": True,
            "log_level": "WARNING",
        }
        self._dbos = DBOS(config=config)
        DBOS.listen_queues([QUEUE])
        self._jobs_at_a_time = jobs_at_a_time
        self._worker_id = worker_id
        self._running: Counter[str] = Counter()
        self._idle: set[str] = set()
        self._lock = threading.Lock()

        @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)
        def job(job_id: str) -> None:
            with self._noted(job_id):
                run(job_id, _run_step)

    def start(self) -> None:
        """Begin to take jobs. Raises :class:`DatabaseOutdated`."""
        try:
            DBOS.launch()
        except (SQLAlchemyError, DBOSException) as error:
            raise DatabaseOutdated(
                f"the job queue cannot be used: {_first_line(error)}; run moeplan db upgrade."
            ) from error
        DBOS.register_queue(
            QUEUE,
            partition_concurrency=1,
            worker_concurrency=self._jobs_at_a_time,
            polling_interval_sec=POLL_S,
            on_conflict="always_update",
        )

    def take_over(self, worker_ids: Sequence[str]) -> int:
        """Queue again what workers that are gone had begun; return how many jobs. Doing it twice is harmless."""
        # DBOS offers this to its paid control plane alone; the method behind it is stable and tested here.
        return len(DBOS._recover_pending_workflows(list(worker_ids)))

    def take_up_left(self) -> int:
        """Queue again what this worker has begun and does not do any more; return how many jobs.

        Called again and again. A job is queued again only when it was found so twice in a row: between being taken from
        the queue and being begun it looks the same.
        """
        database = self._dbos._sys_db  # what DBOS itself recovers with; stable and tested here
        with self._lock:
            pending = {each.workflow_id for each in database.get_pending_workflows(self._worker_id, STEPS_VERSION)}
            idle = pending - set(self._running)
            left, self._idle = idle & self._idle, idle
        return sum(database.reenqueue_for_recovery(job_id, [self._worker_id], QUEUE) for job_id in sorted(left))

    @contextmanager
    def _noted(self, job_id: str) -> Iterator[None]:
        with self._lock:
            self._running[job_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running[job_id] -= 1
                if not self._running[job_id]:
                    del self._running[job_id]

    def stop(self, *, wait_s: int = 0) -> None:
        """Take no more jobs; those that run are left to whoever takes over."""
        DBOS.destroy(workflow_completion_timeout_sec=wait_s)


def _run_step(name: str, step: Callable[[], Json]) -> Json:
    try:
        return DBOS.run_step({"name": name}, step)
    except (SQLAlchemyError, DBOSException) as error:
        # Steps raise nothing themselves: whether the database has the result is not known.
        log.warning("step could not be written down", step=name, detail=_first_line(error))
        raise JobLeft from error


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _quiet() -> None:
    """Send DBOS's log through ours, and only what is wrong."""
    logger = logging.getLogger("dbos")
    logger.handlers = [logging.NullHandler()]
    logger.propagate = True
    logger.setLevel(logging.WARNING)


def _first_line(error: Exception) -> str:
    said = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    return said[0].rstrip(".")
