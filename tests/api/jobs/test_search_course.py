"""The course of a search, from the solver to the events of a job and to whoever asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.jobs.search_course import CourseTeller, point
from api.service.context import Service
from api.service.search_course import SEARCH, course_of_job
from api.states import JobState
from api.store import jobs
from api.store.database import Session
from placement.solver import Figure, Standing
from placement.solver.course import Stage
from tests.api.http.conftest import client_of
from tests.api.jobs.by_hand import carried_out, tasks_here  # noqa: F401  (fixture)
from tests.api.services import counts_trace, ready_trace, service_on


class Clock:
    """Seconds as the test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def standing(best: float | None = 0.5, *, bound: float | None = 0.7) -> Standing:
    return Standing(Figure.LOCAL_GPU, best, bound, 1.02, 1.05, 16)


def test_a_point_is_told_at_once_with_its_seconds() -> None:
    told: list[dict[str, Any]] = []
    clock = Clock()
    teller = CourseTeller(told.append, clock)
    clock.now_s += 2.0
    teller(standing())
    assert [(each["elapsed_s"], each["best"], each["bound"]) for each in told] == [(2.0, 0.5, 0.7)]


def test_a_search_that_never_rests_tells_few_points_and_its_end() -> None:
    told: list[dict[str, Any]] = []
    clock = Clock()
    teller = CourseTeller(told.append, clock)
    for step in range(100_000):
        clock.now_s += 0.01
        teller(standing(step / 1e6))
    teller.end()
    assert len(told) < 600
    assert (told[-1]["elapsed_s"], told[-1]["best"]) == (1000.0, 0.099999)


def test_a_search_of_nothing_tells_nothing() -> None:
    told: list[dict[str, Any]] = []
    CourseTeller(told.append).end()
    assert told == []


def test_what_is_not_known_is_null_not_infinite() -> None:
    told = point(standing(None, bound=float("inf")), elapsed_s=0.0)
    assert json.loads(json.dumps(told, allow_nan=False))["bound"] is None


@pytest.fixture
def service(database_url: str, tmp_path: Any) -> Iterator[Service]:
    with service_on(database_url, tmp_path / "data") as opened:
        yield opened


@pytest.mark.usefixtures("tasks_here")
def test_a_plans_job_keeps_the_course_and_shows_it(service: Service, tmp_path: Any) -> None:
    counts = [[[900, 30, 20, 10, 400, 60, 50, 40], [1, 2, 3, 4, 5, 6, 7, 800]]]
    trace_id = ready_trace(service, counts_trace(tmp_path, counts))
    client = client_of(service)
    asked = client.post("/v1/plans", json={"trace_ids": [trace_id], "gpus": 2, "slots_per_gpu": 5})
    job_id = asked.headers["location"].rsplit("/", 1)[-1]
    assert client.get(f"/v1/jobs/{job_id}/course").json()["points"] == []
    assert "data-course-waiting" in client.get(f"/jobs/{job_id}").text

    assert carried_out(service, job_id).state is JobState.SUCCEEDED
    course = client.get(f"/v1/jobs/{job_id}/course").json()
    plan = client.get(f"/v1/plans/{asked.json()['id']}").json()
    assert (course["figure"], course["higher_is_better"]) == ("local_gpu", True)
    assert course["points"][-1]["best"] == pytest.approx(plan["local_gpu"])
    assert course["points"][-1]["bound"] >= plan["local_gpu"] - 1e-12
    streamed = client.get(f"/v1/jobs/{job_id}/events").text
    assert streamed.count(f"event: {SEARCH}\n") == len(course["points"])

    page = client.get(f"/jobs/{job_id}").text
    assert "best plan so far and proven bound" in page
    assert "data-points=" in page
    assert f"/jobs/{job_id}#search-title" in client.get(f"/plans/{plan['id']}").text

    with service.database.writing() as session:
        jobs.forget_events(session, [job_id])
    assert "Nothing is kept of a search" in client.get(f"/jobs/{job_id}").text


def test_after_a_worker_died_the_search_that_began_again_counts(service: Service, tmp_path: Any) -> None:
    trace_id = ready_trace(service, counts_trace(tmp_path, [[[5, 1, 1, 1]]]))
    client = client_of(service)
    asked = client.post("/v1/plans", json={"trace_ids": [trace_id], "gpus": 2, "slots_per_gpu": 2})
    job_id = asked.headers["location"].rsplit("/", 1)[-1]
    with service.database.writing() as session:
        for elapsed_s, best in ((0.1, 0.2), (5.0, 0.4), (0.1, 0.3), (0.2, 0.35)):
            jobs.say(session, job_id, SEARCH, **point(standing(best), elapsed_s=elapsed_s))
    with service.database.reading() as session:
        assert bests(session, job_id) == [0.3, 0.35]
    assert Stage.SEARCH.sentence in client.get(f"/jobs/{job_id}").text


def bests(session: Session, job_id: str) -> list[float]:
    return [each["best"] for each in course_of_job(session, job_id).points]
