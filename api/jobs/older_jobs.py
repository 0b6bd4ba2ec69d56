"""Jobs that an older moeplan queued, found by a newer one after an upgrade.

::

    nobody has begun it ------------------------------> a worker of this version takes it
    begun, and a worker of another version is alive --> it is left to that one
    begun, and none is -------------------------------> it ends with JOB_OF_OLDER_VERSION

So nothing waits for ever for a worker that will never come again. What a newer moeplan queued is left alone: its
workers are on their way.
"""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version

import structlog

from api.service.context import Service
from api.service.jobs import end
from api.service.subjects import give_up
from api.states import JobState
from api.store import jobs, schedules
from api.store.audit import Actor

OLDER = "JOB_OF_OLDER_VERSION"
DETAIL = "an older moeplan began this job and no worker of it is left; this one cannot go on with it. Ask for it again."
ACTOR = Actor("service:upgrade")

log = structlog.get_logger("moeplan.jobs")


def settle_older_jobs(service: Service, *, gone_after_s: float) -> None:
    """Take in jobs of older versions, or end those that nobody can go on with. Safe in several workers at a time."""
    waiting = service.queue.of_older_steps()
    if not waiting:
        return
    with service.database.reading() as session:
        since = schedules.clock(session) - timedelta(seconds=gone_after_s)
        alive = jobs.workers(session)
        begun = {job_id for job_id in waiting if jobs.find(session, job_id).state is not JobState.QUEUED}
    left_to = [each.id for each in alive if each.seen_at >= since and each.moeplan_version != version("moeplan")]
    renewed = service.queue.renew([job_id for job_id in waiting if job_id not in begun])
    if renewed:
        log.info("jobs of an older version are taken in", jobs=renewed)
    if left_to:
        return
    for job_id in sorted(begun):
        _end(service, job_id)


def _end(service: Service, job_id: str) -> None:
    error = {"code": OLDER, "detail": DETAIL, "remedies": []}
    with service.database.writing() as session:
        job = jobs.lock(session, job_id)
        if not job.state.ended:
            job.error = error
            give_up(session, job, ACTOR, error=error, why=DETAIL)
            end(session, job, JobState.FAILED, ACTOR, why=DETAIL)
    service.queue.forget([job_id])
    log.warning("job of an older version has ended", job_id=job_id)
