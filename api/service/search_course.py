"""How the search of a plan went: the best plan so far and the bound over time, from the events of its job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.store import jobs
from api.store.database import Session
from placement.solver.course import Figure

SEARCH = "search"
"""Kind of the events that hold the points of a course."""

MOST_POINTS = 4000
"""More than a search of weeks tells; the newest count."""


@dataclass(frozen=True)
class SearchCourse:
    """The course of the newest search of a job.

    Attributes
    ----------
    figure : Figure or None
        What is planned for; None where nothing was searched, or the events were forgotten.
    points : list of dict
        As :func:`api.jobs.search_course.point` makes them, with the ``number`` of their event.
    """

    figure: Figure | None
    points: list[dict[str, Any]]


def course_of_job(session: Session, job_id: str) -> SearchCourse:
    """Return how a job's search went; where a worker died, that of the search that began again.

    Raises
    ------
    NotFound
    """
    jobs.find(session, job_id)
    events = jobs.events_of_kind(session, job_id, SEARCH, limit=MOST_POINTS)
    points: list[dict[str, Any]] = []
    for event in events:
        if points and event.data["elapsed_s"] < points[-1]["elapsed_s"]:
            points = []
        points.append({"number": event.number, **event.data})
    return SearchCourse(Figure(points[-1]["figure"]) if points else None, points)
