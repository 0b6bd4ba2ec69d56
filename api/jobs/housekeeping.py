"""What a worker does now and then, so that neither database nor disk grows for ever.

Recordings, events of jobs, decisions, the audit log and answers kept for repeated requests go when their time is over,
files when nothing needs them. Old rows are removed a batch at a time: writers wait for no long transaction.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from datetime import timedelta

import structlog

from api.jobs.plan_work import checkpoint_folder
from api.service.context import Service
from api.states import TraceState
from api.store import audit, forgetting, garbage, jobs, keys, traces
from api.store.audit import Actor, change_state
from api.store.columns import now
from api.store.models import Schedule

GONE_WORKERS_KEPT = timedelta(days=7)

JOBS_AT_A_TIME = 200
ROWS_AT_A_TIME = 5000

ACTOR = Actor("service:retention")

log = structlog.get_logger("moeplan.housekeeping")


def tidy_up(service: Service, *, young_s: float = garbage.YOUNG_S) -> None:
    """Let recordings expire, and remove what nothing refers to any more. Safe in several workers at a time."""
    with service.database.writing() as session:
        for trace in traces.overdue(session, now()):
            trace.sha256 = None
            change_state(session, trace, TraceState.EXPIRED, ACTOR, why="its time of retention is over")
        answers_kept = timedelta(hours=service.settings.answer_retention_hours)
        keys.forget_answers(session, older_than=now() - answers_kept)
        jobs.forget_workers(session, not_seen_since=now() - GONE_WORKERS_KEPT)
    _forget_events(service)
    _forget_changes(service)
    _forget_decisions(service)
    with service.database.reading() as session:
        removed = garbage.remove_unneeded(session, service.files, at_s=time.time(), young_s=young_s)
    removed += service.files.remove_unfinished()
    _remove_checkpoints(service)
    if removed:
        log.info("files removed", files=removed)


def _forget_events(service: Service) -> None:
    """Forget the steps of jobs that ended long ago: their events, and what the queue keeps to take them up again."""
    ended_before = now() - timedelta(days=service.settings.event_retention_days)
    while True:
        with service.database.reading() as session:
            job_ids = jobs.with_events(session, ended_before=ended_before, limit=JOBS_AT_A_TIME)
        if not job_ids:
            return
        service.queue.forget(job_ids)
        with service.database.writing() as session:
            jobs.forget_events(session, job_ids)


def _forget_changes(service: Service) -> None:
    days = service.settings.audit_retention_days
    if days is None:
        return
    while True:
        with service.database.writing() as session:
            forgotten = audit.forget(session, older_than=now() - timedelta(days=days), limit=ROWS_AT_A_TIME)
        if forgotten < ROWS_AT_A_TIME:
            return


def _forget_decisions(service: Service) -> None:
    """Forget decisions whose time is over; the audit log keeps how many of which schedule."""
    days = service.settings.decision_retention_days
    if days is None:
        return
    older_than = now() - timedelta(days=days)
    while True:
        with service.database.writing() as session:
            over = forgetting.decisions_over(session, older_than=older_than, limit=JOBS_AT_A_TIME)
            if not over:
                return
            for schedule_id, count in Counter(decision.schedule_id for decision in over).items():
                schedule = session.get_one(Schedule, schedule_id)
                why = "their time of retention is over"
                audit.record(session, ACTOR, "schedule.decisions_forgotten", schedule, why=why, decisions=count)
            job_ids = [decision.job_id for decision in over if decision.job_id is not None]
            forgetting.forget_decisions(session, over)
        service.queue.forget(job_ids)


def _remove_checkpoints(service: Service) -> None:
    """Remove finished layers of jobs that have ended."""
    for folder in checkpoint_folder(service.settings.data_dir, "any").parent.glob("job_*"):
        with service.database.reading() as session:
            ended = jobs.has_ended(session, folder.name)
        if ended:
            shutil.rmtree(folder, ignore_errors=True)
