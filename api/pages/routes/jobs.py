"""Jobs, while they run and after."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from api.http.edge import Reader
from api.pages.rendering import pages_of
from api.pages.routes import page_router
from api.pages.views.jobs import PLANS, course_view, progress_points, subject_address, told_events
from api.service import page_rows
from api.service.search_course import course_of_job
from api.states import JobState

router = page_router()


@router.get("/jobs")
def list_jobs(
    request: Request,
    edge: Reader,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
    state: JobState | None = None,
) -> Response:
    """Show all jobs, or those of one state."""
    with edge.service.database.reading() as session:
        page = page_rows.job_list(session, cursor, state=state)
        names = page_rows.engine_names(session)
    return pages_of(request).page(
        edge,
        "jobs.html.j2",
        section="jobs",
        title="Jobs",
        jobs=page,
        engine_names=names,
        chosen=state,
        states=list(JobState),
        subject_address=subject_address,
    )


@router.get("/jobs/{job_id}")
def show_job(request: Request, edge: Reader, job_id: str) -> Response:
    """Show how far a job is, live."""
    with edge.service.database.reading() as session:
        rows = page_rows.one_job(session, job_id)
        events = page_rows.job_events(session, job_id)
        course = course_of_job(session, job_id)
    return pages_of(request).page(
        edge,
        "job.html.j2",
        section="jobs",
        title=f"{rows.job.kind} job",
        rows=rows,
        job=rows.job,
        events=told_events(events),
        points=progress_points(events),
        course=course_view(course),
        searches=rows.job.kind in PLANS,
        subject_address=subject_address(rows.job),
    )
