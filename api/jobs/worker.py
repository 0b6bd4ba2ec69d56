"""The process that carries jobs out: ``moeplan worker``, or one that ``moeplan serve`` keeps beside itself.

It is made to die at any moment. Told to end, it does so at once: tasks end by themselves when their worker is gone, and
whoever lives longest takes over what it had begun.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from types import FrameType

import structlog
from sqlalchemy.exc import SQLAlchemyError

from api.jobs.absences import Absences
from api.jobs.durable import Executor
from api.jobs.housekeeping import tidy_up
from api.jobs.older_jobs import settle_older_jobs
from api.jobs.plan_work import make_plan
from api.jobs.rebalance_work import rebalance
from api.jobs.rollout_work import roll_out
from api.jobs.running import Work, run_job
from api.jobs.size_work import weigh_slots
from api.jobs.ticking import ticking
from api.jobs.trace_works import capture_from_engine, import_upload
from api.logs import configure_logs
from api.service.context import Service, open_service
from api.settings import Settings, read_settings
from api.states import JobKind
from api.store import jobs
from api.store.columns import now
from placement.errors import CodedError

WORKS: Mapping[JobKind, Work] = {
    JobKind.IMPORT: import_upload,
    JobKind.CAPTURE: capture_from_engine,
    JobKind.PLAN: make_plan,
    JobKind.ROLLOUT: roll_out,
    JobKind.REBALANCE: rebalance,
    JobKind.SIZE: weigh_slots,
}

HEARTBEAT_S = 5.0
GONE_AFTER_S = 30.0
"""A worker that was not seen for so long is taken for dead. Were it not, what it writes would be refused."""

TIDY_EVERY_S = 600.0

log = structlog.get_logger("moeplan.worker")


def new_worker_id() -> str:
    """Return a name for a worker: where it is, and something that no other has."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


def work(
    settings: Settings,
    *,
    worker_id: str,
    heartbeat_s: float = HEARTBEAT_S,
    gone_after_s: float = GONE_AFTER_S,
    until: threading.Event | None = None,
) -> None:
    """Carry jobs out until the event is set, or the process ends.

    Raises
    ------
    StateError
        The database cannot be used.
    """
    until = until or threading.Event()
    started_at = now()
    with open_service(settings) as service:
        executor = Executor(
            settings.database,
            worker_id=worker_id,
            run=lambda job_id, steps: run_job(service, worker_id, WORKS, job_id, steps),
            jobs_at_a_time=settings.jobs_per_worker,
        )
        executor.start()
        log.info("worker is ready", worker=worker_id, jobs_at_a_time=settings.jobs_per_worker)
        tidied_s = 0.0
        absences = Absences(gone_after_s=gone_after_s)
        with ticking(service):
            while True:
                try:
                    _be_seen(service, worker_id, started_at=started_at)
                    executor.take_up_left()
                    _take_over(service, executor, worker_id, absences)
                    if time.monotonic() - tidied_s > TIDY_EVERY_S:
                        tidied_s = time.monotonic()
                        settle_older_jobs(service, gone_after_s=gone_after_s)
                        tidy_up(service)
                except CodedError as error:
                    absences.begin_anew()
                    log.warning("worker goes on without its database for now", code=error.code, detail=error.detail)
                except SQLAlchemyError:
                    absences.begin_anew()
                    log.exception("worker goes on")  # whatever it was: the jobs that run here must not die of it
                if until.wait(heartbeat_s):
                    break
        executor.stop()


def _be_seen(service: Service, worker_id: str, *, started_at: datetime) -> None:
    with service.database.writing() as session:
        jobs.seen(
            session,
            worker_id,
            host=socket.gethostname(),
            process=os.getpid(),
            version=version("moeplan"),
            started_at=started_at,
        )


def _take_over(service: Service, executor: Executor, worker_id: str, absences: Absences) -> None:
    with service.database.reading() as session:
        seen_at = {each.id: each.seen_at for each in jobs.workers(session)}
    others = [each for each in absences.gone(seen_at, at_s=time.monotonic()) if each != worker_id]
    if not others:
        return
    # Again and again while it is gone: one that only seemed so may have begun something since.
    taken = executor.take_over(others)
    if taken:
        log.warning("jobs of workers that are gone are taken over", workers=others, jobs=taken)


def run_worker(settings: Settings, *, worker_id: str | None = None, lifeline: bool = False) -> None:
    """Be a worker until told to end; then the process ends at once, in the middle of whatever it does.

    Parameters
    ----------
    lifeline
        End too when standard input does, which the parent process holds.
    """
    configure_logs(settings.log_level)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_at_once)
    if lifeline:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    work(settings, worker_id=worker_id or new_worker_id())


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Be the worker of a ``moeplan serve``: settings from variables, the worker's name as argument."""
    run_worker(read_settings(), worker_id=sys.argv[1], lifeline=True)


if __name__ == "__main__":
    main()
