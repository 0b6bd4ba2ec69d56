"""``/v1/schedules``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.http.edge import Admin, Answer, Edge, IdempotencyKey, IfMatch, Pages, Reader, etag
from api.http.problems import documented
from api.http.schemas.common import PageOut, ReasonIn
from api.http.schemas.jobs import JobOut
from api.http.schemas.schedules import ScheduleChange, ScheduleIn, ScheduleOut
from api.service import schedules as schedule_service
from api.service.schedules import USUAL_CAPTURE
from api.store import engines, schedules
from api.store.database import Session
from api.store.models import Schedule

router = APIRouter(prefix="/schedules", tags=["schedules"])


@router.get("", response_model=PageOut[ScheduleOut])
def list_schedules(
    edge: Reader, pages: Pages, engine_id: Annotated[str | None, Query(max_length=40)] = None
) -> PageOut[ScheduleOut]:
    """List the schedules, newest first."""
    with edge.service.database.reading() as session:
        page = schedules.page(session, pages, engine_id=engine_id)
    return PageOut(items=[ScheduleOut.of(row) for row in page.rows], next_cursor=page.next_cursor)


@router.post("", status_code=201, response_model=ScheduleOut, responses=documented(404, 409))
def make_schedule(body: ScheduleIn, edge: Admin, idempotency_key: IdempotencyKey = None) -> Response:
    """Let an engine be rebalanced by the clock: every cycle records, plans, compares, and ends in a decision."""

    def act(session: Session) -> Answer:
        engine = engines.find(session, body.engine_id)
        capture = USUAL_CAPTURE if body.capture is None else body.capture.model_dump(exclude_none=True)
        schedule = schedule_service.create(
            session,
            edge.actor,
            engine=engine,
            name=body.name or engine.name,
            times=body.times(),
            mode=body.mode,
            capture=capture,
            planning=body.planning.model_dump(mode="json", exclude_none=True),
            gates=body.gates.value(),
            rollout=body.rollout.model_dump(exclude_none=True),
            paused=body.paused,
        )
        headers = {"Location": f"/v1/schedules/{schedule.id}", "ETag": etag(schedule.version)}
        return Answer(201, ScheduleOut.of(schedule), headers)

    return edge.once(body.model_dump(mode="json"), act)


@router.get("/{schedule_id}", response_model=ScheduleOut, responses=documented(404))
def get_schedule(schedule_id: str, edge: Reader) -> Response:
    """Show a schedule and where it stands. The ETag is that of its settings; ticks do not change it."""
    with edge.service.database.reading() as session:
        schedule = schedules.find(session, schedule_id)
    shown = ScheduleOut.of(schedule).model_dump_json()
    return Response(shown, media_type="application/json", headers={"ETag": etag(schedule.version)})


@router.patch("/{schedule_id}", response_model=ScheduleOut, responses=documented(404, 409, 412, 428))
def change_schedule(schedule_id: str, body: ScheduleChange, edge: Admin, if_match: IfMatch = None) -> Response:
    """Change a schedule from its next tick on."""

    def act(session: Session) -> Answer:
        schedule = schedules.lock(session, schedule_id)
        edge.require_version(schedule.version)
        schedule_service.change(session, edge.actor, schedule, body.changes())
        return _shown(session, schedule)

    return edge.change(act)


@router.delete("/{schedule_id}", status_code=204, responses=documented(404, 412))
def remove_schedule(schedule_id: str, edge: Admin, body: ReasonIn | None = None, if_match: IfMatch = None) -> Response:
    """Let a schedule end. Its decisions stay, and a cycle that runs goes on."""

    def act(session: Session) -> Answer:
        schedule = schedules.lock(session, schedule_id)
        edge.require_version_if_given(schedule.version)
        schedule_service.remove(session, edge.actor, schedule, why=body.reason if body else "")
        return Answer(204)

    return edge.change(act)


@router.post("/{schedule_id}/pause", response_model=ScheduleOut, responses=documented(404, 409, 412))
def pause_schedule(schedule_id: str, edge: Admin, body: ReasonIn | None = None, if_match: IfMatch = None) -> Response:
    """Let no tick come due until it is resumed. A cycle that runs goes on; its job can be cancelled."""
    return _switched(edge, schedule_id, schedule_service.pause, body)


@router.post("/{schedule_id}/resume", response_model=ScheduleOut, responses=documented(404, 409, 412))
def resume_schedule(schedule_id: str, edge: Admin, body: ReasonIn | None = None, if_match: IfMatch = None) -> Response:
    """Go on with the next tick; those that passed meanwhile are not made up for."""
    return _switched(edge, schedule_id, schedule_service.resume, body)


@router.post("/{schedule_id}/run", status_code=202, response_model=JobOut, responses=documented(404, 409))
def run_schedule(
    schedule_id: str, edge: Admin, body: ReasonIn | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Begin a cycle now, also while it is paused; its gates hold as always. Follow the job in `Location`."""
    why = body.reason if body else ""

    def act(session: Session) -> Answer:
        schedule = schedules.lock(session, schedule_id)
        job = schedule_service.run_now(edge.service, session, edge.actor, schedule, why=why)
        return Answer(202, JobOut.of(job), {"Location": f"/v1/jobs/{job.id}"})

    return edge.once({"reason": why}, act)


def _switched(edge: Edge, schedule_id: str, switch: Callable[..., None], body: ReasonIn | None) -> Response:
    def act(session: Session) -> Answer:
        schedule = schedules.lock(session, schedule_id)
        edge.require_version_if_given(schedule.version)
        switch(session, edge.actor, schedule, why=body.reason if body else "")
        return _shown(session, schedule)

    return edge.change(act)


def _shown(session: Session, schedule: Schedule) -> Answer:
    session.flush()
    return Answer(200, ScheduleOut.of(schedule), {"ETag": etag(schedule.version)})
