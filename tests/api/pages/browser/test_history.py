"""What needs several nodes or a history: flows between nodes, decisions of every outcome, the course of a search."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from api.plan_request import PlanRequest
from api.planning import plan_from_files
from api.service.context import Service
from api.service.search_course import SEARCH
from api.states import JobKind, JobState, Outcome, PlanState
from api.store import jobs
from api.store.columns import now
from api.store.identifiers import new_id
from api.store.models import Cycle, Decision, Job, PlanTrace
from placement.problem import Objective
from profiler.readers.options import ReadOptions
from tests.api.pages.browser.conftest import Site
from tests.api.pages.chromium import inspect, served, watched_page
from tests.api.schedules import an_engine, scheduled
from tests.api.services import counts_trace, ready_plan, ready_trace, service_on

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def site(chromium: Browser, migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A service without a worker: everything is there already."""
    folder = tmp_path_factory.mktemp("history")
    shutil.copy(migrated_sqlite, folder / "moeplan.db")
    with service_on(f"sqlite:///{folder}/moeplan.db", folder / "data") as service, served(service) as url:
        yield Site(url, service, engine_url="")


def test_tokens_flow_between_nodes(chromium: Browser, site: Site, tmp_path: Path) -> None:
    content = counts_trace(tmp_path, np.random.default_rng(5).integers(1, 900, (2, 3, 16)).tolist())
    (tmp_path / "trace.parquet").write_bytes(content)
    request = PlanRequest(gpus=4, nodes=2, slots_per_gpu=5, objective=Objective.BALANCE)
    made = plan_from_files([tmp_path / "trace.parquet"], ReadOptions(), request)
    trace_id = ready_trace(site.service, content)
    plan_id = ready_plan(site.service, made, engine_id=None, state=PlanState.PROPOSED)
    with site.service.database.writing() as session:
        session.add(PlanTrace(plan_id=plan_id, trace_id=trace_id, position=0))
    with watched_page(chromium) as page:
        page.goto(f"{site.url}/traces/{trace_id}/traffic?plan={plan_id}")
        expect(page.locator("[data-loading]")).to_be_hidden()
        expect(page.locator("[data-sankey] canvas")).to_have_count(1)
        assert page.locator("[data-sankey] canvas").evaluate(DRAWN_PX) > 1000
        inspect(page, "21-traffic-between-nodes")


def test_decisions_of_every_outcome_are_points_in_time(chromium: Browser, site: Site) -> None:
    schedule_id = decided_in_every_way(site.service)
    with watched_page(chromium) as page:
        page.goto(f"{site.url}/schedules/{schedule_id}")
        page.wait_for_load_state("networkidle")
        assert page.locator("[data-decisions] canvas").evaluate(DRAWN_PX) > 500
        for outcome in Outcome:
            expect(page.locator("ol.timeline")).to_contain_text(str(outcome).replace("_", " "))
        inspect(page, "22-decisions")


def test_the_course_of_a_search_grows_while_the_page_is_open(chromium: Browser, site: Site) -> None:
    job_id = searching_job(site.service)
    with watched_page(chromium) as page:
        page.goto(f"{site.url}/jobs/{job_id}")
        rows = page.locator("[data-course-table] tbody tr")
        expect(rows).to_have_count(1)
        tell(site.service, job_id, elapsed_s=2.0, best=0.61)
        expect(rows).to_have_count(2)
        expect(page.locator("[data-course-sentence]")).to_contain_text("local_gpu 61.00")
        inspect(page, "23-course-of-a-search")


DRAWN_PX = """(canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let drawn = 0;
    for (let at = 3; at < data.length; at += 4) drawn += data[at] > 0;
    return drawn;
}"""


def decided_in_every_way(service: Service) -> str:
    engine_id = an_engine(service, "decided")
    schedule_id = scheduled(service, engine_id)
    with service.database.writing() as session:
        for number, outcome in enumerate(Outcome):
            at = now() - timedelta(hours=6 * (len(Outcome) - number))
            schedule = {"schedule_id": schedule_id, "engine_id": engine_id, "created_at": at}
            cycle = Cycle(
                id=new_id("cyc"), number=number + 1, due_at=at, asked=False, missed_ticks=0, settings={}, numbers={},
                created_by="clock", ended_at=at, **schedule,
            )  # fmt: skip
            session.add(cycle)
            session.flush()
            session.add(
                Decision(
                    id=new_id("dec"),
                    cycle_id=cycle.id,
                    outcome=outcome,
                    code=outcome.name,
                    numbers={},
                    sentence=outcome.sentence,
                    **schedule,
                )
            )
    return schedule_id


def searching_job(service: Service) -> str:
    """Keep a job that a worker seems to be at, with the first point of its search."""
    job = Job(
        id=new_id("job"), kind=JobKind.PLAN, state=JobState.RUNNING, engine_id=None, subject_id="pln_none",
        progress=0.3, step="searching", attempts=1, worker="a worker of the test", created_by="t", created_at=now(),
    )  # fmt: skip
    with service.database.writing() as session:
        session.add(job)
    tell(service, job.id, elapsed_s=0.5, best=0.58)
    return job.id


def tell(service: Service, job_id: str, *, elapsed_s: float, best: float) -> None:
    with service.database.writing() as session:
        jobs.say(
            session, job_id, SEARCH, elapsed_s=elapsed_s, figure="local_gpu", best=best, bound=0.66, imbalance=1.04,
            cap=1.05, slots_per_gpu=16, stage="search",
        )  # fmt: skip
