"""``/v1/jobs``, with their events as a stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from api.errors import BadRequest
from api.http.edge import Admin, Answer, Pages, Reader
from api.http.problems import documented
from api.http.schemas.common import PageOut, ReasonIn
from api.http.schemas.jobs import CourseOut, JobOut
from api.service import jobs as job_service
from api.service.context import Service
from api.service.search_course import course_of_job
from api.states import JobState
from api.store import jobs
from api.store.columns import iso
from api.store.database import Session
from api.store.models import JobEvent

router = APIRouter(prefix="/jobs", tags=["jobs"])

POLL_S = 0.5
KEEP_ALIVE_S = 15.0
LONGEST_STREAM_S = 3600.0
"""A stream ends after so long; the client goes on where it was, by ``Last-Event-ID``."""


@router.get("", response_model=PageOut[JobOut])
def list_jobs(
    edge: Reader,
    pages: Pages,
    engine_id: Annotated[str | None, Query(max_length=40)] = None,
    state: JobState | None = None,
) -> PageOut[JobOut]:
    """List jobs, newest first."""
    with edge.service.database.reading() as session:
        page = jobs.page(session, pages, engine_id=engine_id, state=state)
    return PageOut(items=[JobOut.of(row) for row in page.rows], next_cursor=page.next_cursor)


@router.get("/{job_id}", response_model=JobOut, responses=documented(404))
def get_job(job_id: str, edge: Reader) -> JobOut:
    """Show how far a job is."""
    with edge.service.database.reading() as session:
        return JobOut.of(jobs.find(session, job_id))


@router.get("/{job_id}/course", response_model=CourseOut, responses=documented(404))
def get_course(job_id: str, edge: Reader) -> CourseOut:
    """Show how the search of a plan goes: the best plan so far and the proven bound, over time."""
    with edge.service.database.reading() as session:
        return CourseOut.of(job_id, course_of_job(session, job_id))


@router.post("/{job_id}/cancel", status_code=202, response_model=JobOut, responses=documented(404, 409))
def cancel_job(job_id: str, edge: Admin, body: ReasonIn | None = None) -> Response:
    """Stop a job: at once while it waits, within two seconds while it solves. A push is never cut off."""

    def act(session: Session) -> Answer:
        job = jobs.lock(session, job_id)
        job_service.cancel(session, edge.actor, job, why=body.reason if body else "")
        return Answer(202, JobOut.of(job))

    return edge.change(act)


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses=documented(404)
    | {200: {"description": "Events until the job has ended.", "content": {"text/event-stream": {}}}},
)
async def follow_job(
    job_id: str,
    request: Request,
    edge: Reader,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=20)] = None,
) -> StreamingResponse:
    """Follow a job as server-sent events; after a break `Last-Event-ID` goes on where it was.

    Kinds of events, each with `at`: `state` (`state`, `sentence`; at the end `error` or `result`), `progress`
    (`progress` from 0 to 1, `step`), `search` (a point of the course of a plan's search, at most fifty while the time
    grows by a factor e; fields as in `/course`), `resumed` (`after`, `attempt`).
    """
    after = _number(last_event_id)
    service = edge.service
    await run_in_threadpool(_find, service, job_id)
    return StreamingResponse(_stream(service, request, job_id, after), media_type="text/event-stream")


async def _stream(service: Service, request: Request, job_id: str, after: int) -> AsyncIterator[str]:
    until_s = time.monotonic() + LONGEST_STREAM_S
    spoke_s = time.monotonic()
    while time.monotonic() < until_s and not await request.is_disconnected():
        # Whether it has ended is read before its events: what ends it is among those read then.
        ended = await run_in_threadpool(_has_ended, service, job_id)
        events = await run_in_threadpool(_events, service, job_id, after)
        for event in events:
            after = event.number
            yield _rendered(event)
        if events:
            spoke_s = time.monotonic()
        elif ended:
            return
        elif time.monotonic() - spoke_s > KEEP_ALIVE_S:
            spoke_s = time.monotonic()
            yield ": still here\n\n"
        if not events:
            await asyncio.sleep(POLL_S)


def _rendered(event: JobEvent) -> str:
    data = json.dumps({"at": iso(event.at), **event.data}, separators=(",", ":"))
    return f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n"


def _number(last_event_id: str | None) -> int:
    if last_event_id is None or last_event_id == "":
        return 0
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19):
        raise BadRequest(f"Last-Event-ID is {last_event_id!r}; it is the id of an event of this job.")
    return int(last_event_id)


def _find(service: Service, job_id: str) -> None:
    with service.database.reading() as session:
        jobs.find(session, job_id)


def _has_ended(service: Service, job_id: str) -> bool:
    with service.database.reading() as session:
        return jobs.has_ended(session, job_id)


def _events(service: Service, job_id: str, after: int) -> Sequence[JobEvent]:
    with service.database.reading() as session:
        return jobs.events_after(session, job_id, after)
