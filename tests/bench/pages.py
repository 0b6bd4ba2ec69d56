"""How fast the heat of large models is drawn and played, and what pages weigh: ``python -m tests.bench.pages``.

A made-up recording is served by the real service to a real Chromium on the same machine, cold: a fresh browser,
nothing cached in it or in the service. "From the answer" is the time from the last byte of the heat to the drawn
matrix, both by the browser's own clock; "from the click" is from the request of the page. Played are windows one after
another, as the Play button does, which holds itself back at 60 ms per window; "drawn alone" is how many of them the
drawing takes. Bytes are those of everything that a page loads: as it travelled, and unpacked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page

from api.loading import read_options
from api.logs import configure_logs
from api.plan_request import PlanRequest
from api.planning import plan_from_files
from api.service.context import Service
from api.service.search_course import SEARCH
from api.settings import read_settings
from api.states import JobKind, JobState, PlanState
from api.store import jobs
from api.store.columns import now
from api.store.database import Database
from api.store.identifiers import new_id
from api.store.migrate import upgrade
from api.store.models import Job, PlanTrace
from placement.problem import Objective
from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.writers.parquet import import_trace
from tests.api.pages.chromium import MISSING, chromium_program, running_chromium, served, wait_until
from tests.api.services import ready_plan, ready_trace, service_on
from tests.bench.support.tables import print_head, print_rows

GPUS = 32


@dataclass(frozen=True)
class Shape:
    """A model and how much of it was recorded."""

    name: str
    dense_layers: int
    layers: int
    experts: int
    windows: int
    slots_per_gpu: int


SHAPES = (
    Shape("61 x 384 (Kimi-K2)", 1, 61, 384, 60, 13),
    Shape("94 x 128 (Qwen3-235B)", 0, 94, 128, 60, 5),
    Shape("94 x 384", 0, 94, 384, 60, 13),
)


@dataclass(frozen=True)
class Weight:
    """What a page loaded, in bytes."""

    travelled: int
    unpacked: int
    files: int


@contextmanager
def made_up_service(shape: Shape) -> Iterator[tuple[Service, str, str]]:
    """Open a service with one recording and one plan of it; yield their ids too."""
    with tempfile.TemporaryDirectory(prefix="moeplan-bench-") as name:
        folder = Path(name)
        trace = _recording(shape, folder)
        request = PlanRequest(gpus=GPUS, slots_per_gpu=shape.slots_per_gpu, objective=Objective.BALANCE, time_limit_s=5)
        made = plan_from_files([trace], read_options(), request)
        url = f"sqlite:///{folder}/moeplan.db"
        database = Database(read_settings(database_url=url, data_dir=folder / "data").database)
        upgrade(database)
        database.close()
        with service_on(url, folder / "data") as service:
            trace_id = ready_trace(service, trace.read_bytes())
            plan_id = ready_plan(service, made, engine_id=None, state=PlanState.PROPOSED)
            with service.database.writing() as session:
                session.add(PlanTrace(plan_id=plan_id, trace_id=trace_id, position=0))
            yield service, trace_id, plan_id


def jobs_of_plan(service: Service, plan_id: str) -> str:
    """Keep a plan's job with the course of its search, and one with plans for other slots; return the first's id."""
    usual: dict[str, Any] = {
        "state": JobState.SUCCEEDED, "engine_id": None, "subject_id": plan_id, "progress": 1.0, "step": "done",
        "attempts": 1, "created_by": "bench", "created_at": now(),
    }  # fmt: skip
    row = {"local_gpu": 0.5, "local_gpu_bound": 0.6, "imbalance": 1.05}
    sized = {"rows": [{"slots_per_gpu": slots, **row} for slots in range(13, 23)]}
    made = Job(id=new_id("job"), kind=JobKind.PLAN, **usual)
    with service.database.writing() as session:
        session.add_all([made, Job(id=new_id("job"), kind=JobKind.SIZE, result=sized, **usual)])
        session.flush()
        for number in range(300):
            point = {"elapsed_s": number / 10, "figure": "local_gpu", "best": 0.5 + number / 1e4, "bound": 0.6}
            jobs.say(session, made.id, SEARCH, imbalance=1.05, cap=1.05, slots_per_gpu=13, stage="search", **point)
    return made.id


def _recording(shape: Shape, folder: Path) -> Path:
    rng = np.random.default_rng(0)
    base_LE = rng.gamma(0.8, 2000.0, (shape.layers, shape.experts))
    counts_WLE = (base_LE[None] * rng.gamma(4.0, 0.25, (shape.windows, shape.layers, shape.experts))).astype(np.int64)
    counts_WLE[:, : shape.dense_layers] = 0
    source, out = folder / "counts.npz", folder / "trace.parquet"
    np.savez(source, counts=counts_WLE)
    import_trace(open_inputs([source], ReadOptions()), out)
    return out


def first_heat_ms(page: Page, address: str) -> tuple[float, float]:
    """Return the milliseconds from the answer, and from the click, to the drawn matrix."""
    page.goto(address)
    wait_until(page, "document.documentElement.dataset.heat === 'drawn'")
    told = page.evaluate(
        """async () => {
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            const drawn = performance.getEntriesByName('moeplan-heat-drawn')[0].startTime;
            const answer = performance.getEntriesByType('resource').find((each) => each.name.includes('axis=experts'));
            return [drawn - answer.responseEnd, drawn];
        }"""
    )
    return float(told[0]), float(told[1])


def windows_per_second(page: Page, *, seconds: float) -> float:
    """Return how many windows the Play button shows in a second, once the first ones are there."""
    page.get_by_role("button", name="Play").click()
    wait_until(page, "Number(document.querySelector('[data-window]').value) >= 2")
    shown = page.evaluate(
        """(seconds) => new Promise((done) => {
            const slider = document.querySelector('[data-window]');
            let seen = slider.value, count = 0;
            const began = performance.now();
            const look = () => {
                if (slider.value !== seen) { seen = slider.value; count += 1; }
                if (performance.now() - began >= 1000 * seconds) done(count / ((performance.now() - began) / 1000));
                else requestAnimationFrame(look);
            };
            look();
        })""",
        seconds,
    )
    page.get_by_role("button", name="Stop").click()
    return float(shown)


def draws_per_second(page: Page, shape: Shape) -> float:
    """Return how many windows a second could be coloured and painted if they were all there."""
    return float(
        page.evaluate(
            """async ([layers, experts]) => {
                const at = document.querySelector('script[src*="heat.js"]').src.replace('heat.js', '');
                const { Matrix } = await import(`${at}matrix.js`);
                const { overRowMean } = await import(`${at}frames.js`);
                const limits = JSON.parse(document.querySelector('[data-heat-limits]').dataset.heatLimits);
                const shape = { rows: layers, columns: experts, scale: 'heat', limits };
                const map = new Matrix(document.querySelector('#heat'), shape);
                const cells = { length: layers * experts };
                const values = Uint32Array.from(cells, (_, cell) => (cell * 2654435761) % 5000);
                const began = performance.now();
                let draws = 0;
                while (performance.now() - began < 1000) { map.draw(overRowMean(values, layers, experts)); draws += 1; }
                return draws / ((performance.now() - began) / 1000);
            }""",
            [shape.layers, shape.experts],
        )
    )


def weight_of(browser: Browser, address: str) -> Weight:
    """Load a page in a browser that knows nothing, and add up what came."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.wait_for_load_state("networkidle")
    told = page.evaluate(
        """() => {
            const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
            const sum = (name) => all.reduce((total, each) => total + each[name], 0);
            return [sum('transferSize'), sum('decodedBodySize'), all.length];
        }"""
    )
    context.close()
    return Weight(*(int(each) for each in told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long windows are played")
    arguments = parser.parse_args()
    configure_logs("warning")
    program = chromium_program()
    if program is None:
        sys.exit(MISSING)
    print_head("The pages in a real Chromium", protocol=(__doc__ or "").strip().splitlines()[2:])
    rows, weights = [], []
    with running_chromium(program) as browser:
        for shape in SHAPES:
            with made_up_service(shape) as (service, trace_id, plan_id), served(service) as url:
                for name, choice in (("heat alone", "none"), ("with loads before and under a plan", plan_id)):
                    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
                    from_answer, from_click = first_heat_ms(page, f"{url}/traces/{trace_id}?plan={choice}")
                    played = windows_per_second(page, seconds=arguments.seconds)
                    drawn = draws_per_second(page, shape)
                    page.context.close()
                    rows.append(
                        (shape.name, name, f"{from_answer:.0f}", f"{from_click:.0f}", f"{played:.1f}", f"{drawn:.0f}")
                    )
                if shape is SHAPES[0]:
                    job_id = jobs_of_plan(service, plan_id)
                    expert = f"/traces/{trace_id}?plan={plan_id}&expert=5.7"
                    traffic = f"/traces/{trace_id}/traffic?plan={plan_id}"
                    for path in (
                        "/", "/traces", f"/traces/{trace_id}?plan={plan_id}", expert, traffic, "/plans",
                        f"/plans/{plan_id}", "/rollouts", "/jobs", f"/jobs/{job_id}", f"/compare?trace={trace_id}",
                        "/login",
                    ):  # fmt: skip
                        found = weight_of(browser, url + path)
                        shown = path.replace(trace_id, "ID").replace(plan_id, "ID").replace(job_id, "ID")
                        weights.append((shown, f"{found.travelled:,}", f"{found.unpacked:,}", found.files))
    columns = ("from the answer, ms", "from the click, ms", "played, windows/s", "drawn alone, windows/s")
    print_rows(("layers x experts", "page", *columns), rows, title="Heat")
    print_rows(("page", "bytes travelled", "bytes unpacked", "files"), weights, title=f"Weight, {SHAPES[0].name}")


if __name__ == "__main__":
    main()
