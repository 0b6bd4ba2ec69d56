"""Jobs: beginning them, stopping them."""

from __future__ import annotations

from api.errors import WrongState
from api.service.context import Service
from api.service.subjects import give_up
from api.states import JobKind, JobState
from api.store import audit, jobs, plans
from api.store.audit import Actor, change_state
from api.store.columns import now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Job


def begin(
    service: Service, session: Session, actor: Actor, *, kind: JobKind, subject_id: str, engine_id: str | None
) -> Job:
    """Make a job and queue it, both or neither: it is carried out once the session is committed."""
    job = Job(
        id=new_id("job"),
        kind=kind,
        state=JobState.QUEUED,
        engine_id=engine_id,
        subject_id=subject_id,
        progress=0.0,
        step="",
        attempts=0,
        request_id=actor.request_id,
        created_by=actor.who,
        created_at=now(),
    )
    session.add(job)
    session.flush()
    audit.record(session, actor, "job.queued", job, after=JobState.QUEUED, kind=str(kind), for_id=subject_id)
    jobs.say(session, job.id, "state", state=str(JobState.QUEUED), sentence=JobState.QUEUED.sentence)
    service.queue.enqueue(session, job.id, engine_id=engine_id)
    return job


def cancel(session: Session, actor: Actor, job: Job, *, why: str) -> None:
    """Stop a job that is locked: at once while it waits, otherwise as soon as its worker sees it.

    Raises
    ------
    WrongState
        It has ended, or is changing an engine: that is taken back, not cut off.
    """
    if job.state.ended:
        raise WrongState(f"the job is {job.state}: {job.state.sentence}")
    for rollout in plans.rollouts_of_job(session, job.id):
        if rollout.state.moves_layers:
            raise WrongState(
                f"the rollout {rollout.id} is {rollout.state}: {rollout.state.sentence} Let it end, then roll it back "
                "if it is not wanted."
            )
    job.cancel_asked_at = job.cancel_asked_at or now()
    audit.record(session, actor, "job.cancel_asked", job, why=why)
    if job.state is JobState.QUEUED:
        give_up(session, job, actor, error=None, why=why)
        end(session, job, JobState.CANCELLED, actor, why=why)


def end(session: Session, job: Job, state: JobState, actor: Actor, *, why: str = "") -> None:
    """Take a job to its last state and tell those who follow it."""
    change_state(session, job, state, actor, why=why)
    job.ended_at = now()
    if state is JobState.SUCCEEDED:
        job.progress = 1.0
    jobs.say(session, job.id, "state", state=str(state), sentence=state.sentence, error=job.error, result=job.result)
