"""What a worker does now and then: retention, files that nothing needs, answers kept for repeated requests."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta

import structlog

from api.jobs.plan_work import checkpoint_folder
from api.service.context import Service
from api.states import TraceState
from api.store import garbage, jobs, keys, traces
from api.store.audit import Actor, change_state
from api.store.columns import now

ANSWERS_KEPT = timedelta(days=1)
"""How long a request may be repeated under its idempotency key."""

GONE_WORKERS_KEPT = timedelta(days=7)

ACTOR = Actor("service:retention")

log = structlog.get_logger("moeplan.housekeeping")


def tidy_up(service: Service, *, young_s: float = garbage.YOUNG_S) -> None:
    """Let recordings expire, and remove what nothing refers to any more. Safe in several workers at a time."""
    with service.database.writing() as session:
        for trace in traces.overdue(session, now()):
            trace.sha256 = None
            change_state(session, trace, TraceState.EXPIRED, ACTOR, why="its time of retention is over")
        keys.forget_answers(session, older_than=now() - ANSWERS_KEPT)
        jobs.forget_workers(session, not_seen_since=now() - GONE_WORKERS_KEPT)
    with service.database.reading() as session:
        removed = garbage.remove_unneeded(session, service.files, at_s=time.time(), young_s=young_s)
    removed += service.files.remove_unfinished()
    _remove_checkpoints(service)
    if removed:
        log.info("files removed", files=removed)


def _remove_checkpoints(service: Service) -> None:
    """Remove finished layers of jobs that have ended."""
    for folder in checkpoint_folder(service.settings.data_dir, "any").parent.glob("job_*"):
        with service.database.reading() as session:
            ended = jobs.has_ended(session, folder.name)
        if ended:
            shutil.rmtree(folder, ignore_errors=True)
