"""What the pages say, without a browser: also of nothing, of broken things, and of layers without traffic."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.pages.views.schedules import gate_rows, number_rows
from api.pages.words import long_time
from api.service.context import Service
from api.states import PlanState
from tests.api.services import counts_trace, plan_for_replay, ready_plan, ready_trace, replay_engine
from tests.case_files import case, case_folder


def words(text: str) -> str:
    """Return a page's text without its markup."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))


@pytest.mark.parametrize(
    "path", ["/", "/traces", "/plans", "/rollouts", "/jobs", "/plans/new", "/engines/new", "/whoami"]
)
def test_first_pages_say_what_to_do_next(browser: TestClient, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 200
    assert 'class="empty"' in answer.text or "<form" in answer.text or path == "/whoami"


@pytest.mark.parametrize(
    "path", ["/traces/trc_none", "/plans/pln_none", "/rollouts/rol_none", "/jobs/job_none", "/engines/eng_none"]
)
def test_what_is_not_there_is_a_page_too(browser: TestClient, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert "NOT_FOUND" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


def test_the_api_answers_with_problems_still(browser: TestClient) -> None:
    assert browser.get("/v1/traces/trc_none").headers["content-type"] == "application/problem+json"
    assert "/login" not in browser.get("/openapi.json").json()["paths"]


def test_dense_layers_are_empty_and_in_no_average(service: Service, browser: TestClient) -> None:
    dump = case_folder("P12") / "dump.pt"
    oracle = case("P12")["expect"]["oracle"]
    trace_id = uploaded(service, dump)
    text = words(browser.get(f"/traces/{trace_id}").text)
    silent = sorted(set(range(4)) - set(oracle["moe_layers"]))
    assert f"Empty rows: {len(silent)} layers ({', '.join(map(str, silent))}) without experts or traffic" in text
    rows = re.findall(
        r'<tr><th scope="row">(\d+)</th><td class="number">[\d,]+</td>', browser.get(f"/traces/{trace_id}").text
    )
    assert [int(row) for row in rows] == oracle["moe_layers"]


def test_a_recording_of_nothing_says_so(service: Service, browser: TestClient) -> None:
    trace_id = uploaded(service, case_folder("P13") / "dump.pt")
    text = words(browser.get(f"/traces/{trace_id}").text)
    assert "Nothing was routed" in text
    assert "data-heat" not in text


def test_the_plan_page_shows_the_plans_own_figures(service: Service, browser: TestClient) -> None:
    made = plan_for_replay()
    plan_id = ready_plan(service, made, engine_id=None, state=PlanState.PROPOSED)
    text = words(browser.get(f"/plans/{plan_id}").text)
    assert f"{100 * (made.metrics.local_gpu or 0):.1f}" in text
    assert f"{made.metrics.imbalance:.3f}" in text
    for name in ("eplb", "trivial", "random", "hot_replication", "proven bound"):
        assert name in text
    assert f"{made.moves.moved_slots:,} of" in text


def test_names_of_others_are_text_and_nothing_else(service: Service, browser: TestClient) -> None:
    with replay_engine() as url:
        made = browser.post("/v1/engines", json={"name": "<img src=x onerror=alert(1)>", "url": url})
        for path in ("/", f"/engines/{made.json()['id']}", "/traces", "/plans/new"):
            assert "<img" not in browser.get(path).text


def test_the_overview_names_what_waits_for_a_person(service: Service, browser: TestClient) -> None:
    with replay_engine() as url:
        engine_id = browser.post("/v1/engines", json={"name": "replay", "url": url}).json()["id"]
        assert "Nothing has been recorded from it yet" in words(browser.get("/").text)
        ready_plan(service, plan_for_replay(), engine_id=engine_id, state=PlanState.PROPOSED)
        text = words(browser.get("/").text)
    assert "A plan waits for approval" in text
    assert "target 60" in text


def test_an_engine_that_is_gone_is_told_with_its_sentence(browser: TestClient) -> None:
    browser.post("/v1/engines", json={"name": "gone", "url": "http://127.0.0.1:9"})
    assert "Look at the engine" in words(browser.get("/").text)


def uploaded(service: Service, path: Path) -> str:
    """Keep a file as the job that reads uploads would."""
    from profiler.inputs import open_inputs
    from profiler.readers.options import ReadOptions
    from profiler.writers.parquet import import_trace

    out = service.settings.data_dir / "imported.parquet"
    out.parent.mkdir(parents=True, exist_ok=True)
    import_trace(open_inputs([path], ReadOptions()), out)
    return ready_trace(service, out.read_bytes())


def test_heat_of_several_windows_offers_to_play(service: Service, browser: TestClient, tmp_path: Path) -> None:
    several = ready_trace(service, counts_trace(tmp_path, [[[4, 3, 2, 1]], [[1, 1, 5, 1]]]))
    text = browser.get(f"/traces/{several}").text
    assert 'data-windows="2"' in text
    assert re.search(r"<button[^>]*data-play>", text)


def test_schedules_and_their_decisions_have_pages(service: Service, browser: TestClient) -> None:
    with replay_engine() as url:
        engine_id = browser.post("/v1/engines", json={"name": "replay", "url": url}).json()["id"]
    made = browser.post("/v1/schedules", json={"engine_id": engine_id, "cron": "30 * * * *", "name": "hourly"}).json()
    text = words(browser.get(f"/schedules/{made['id']}").text)
    assert "at 30 * * * * (UTC)" in text
    assert "least_tokens 100,000" in text
    assert "Pause" in text
    browser.post(f"/v1/schedules/{made['id']}/pause", json={})
    assert "Resume" in words(browser.get(f"/schedules/{made['id']}").text)
    assert "hourly" in words(browser.get("/schedules").text)
    assert "paused" in words(browser.get("/").text)
    assert browser.get("/schedules?outcome=applied").status_code == 200
    assert browser.get("/schedules?outcome=lost").status_code == 404


def test_windows_drift_by_their_total_variation(service: Service, browser: TestClient, tmp_path: Path) -> None:
    counts_WLE = [[[3, 1, 0, 0], [0, 0, 0, 0]], [[1, 1, 1, 1], [0, 0, 0, 0]]]
    trace_id = ready_trace(service, counts_trace(tmp_path, counts_WLE))
    text = words(browser.get(f"/compare?trace={trace_id}&a=0&b=1").text)
    assert "50.0 % of a layer's tokens choose another expert" in text  # 1/2 less here, twice 1/4 more there
    assert "3.00 \N{MULTIPLICATION SIGN}" in text
    assert "It is twice the same window" in words(browser.get(f"/compare?trace={trace_id}&a=1&b=1").text)
    refused = words(browser.get(f"/compare?trace={trace_id}&a=7").text)
    assert "the recording has no window 7; there are windows 0 to 1." in refused


def test_two_plans_are_compared_by_what_moves(service: Service, browser: TestClient) -> None:
    made = plan_for_replay()
    first, second = (ready_plan(service, made, engine_id=None, state=PlanState.PROPOSED) for _ in range(2))
    text = words(browser.get(f"/compare?kind=layouts&a={first}&b={second}").text)
    assert "0 slots move" in text
    assert "Every expert has as many replicas in both" in text


def test_the_target_has_a_gauge_and_every_chart_of_a_plan_a_table(service: Service, browser: TestClient) -> None:
    made = plan_for_replay()
    plan_id = ready_plan(service, made, engine_id=None, state=PlanState.PROPOSED)
    text = browser.get(f"/plans/{plan_id}").text
    gauge = re.search(r'<svg class="gauge"[^>]*aria-label="([^"]*)"', text)
    assert gauge is not None
    said = html.unescape(gauge[1])
    assert f"target {100 * made.options.local_target:.0f}" in said
    assert "trivial layout" in said
    assert "proven bound" in said
    for name in ("moves-by-layer", "moves-by-gpu", "windows-planned-for"):
        assert f'data-csv="{name}"' in text


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(86400.0, "1 day"), (5400.0, "1.5 hours"), (600.0, "10 minutes"), (90.0, "90 s"), (1000.0, "1000 s")],
)
def test_durations_are_told_in_their_largest_unit(seconds: float, told: str) -> None:
    assert long_time(seconds) == told


def test_gates_are_told_apart_from_other_numbers() -> None:
    closed = {"gate": "cool_down", "open": False, "code": "COOLING_DOWN", "value": 0.18, "limit": 600.0}
    numbers = {"gates": [closed], "missed_ticks": 2, "drift": {"mean": None}}
    (gate,) = gate_rows(numbers)
    assert (gate.name, gate.is_open, gate.code, gate.value, gate.limit) == (
        "cool_down", False, "COOLING_DOWN", "0.18", "600",
    )  # fmt: skip
    assert number_rows(numbers) == [("missed_ticks", "2"), ("drift.mean", "\N{EN DASH}")]
