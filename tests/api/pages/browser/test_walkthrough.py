"""The whole way in a real Chromium: from a first start with nothing to a plan that was pushed and taken back.

With ``MOEPLAN_SCREENSHOTS=FOLDER`` every station leaves pictures, for looking at.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from api.states import PlanState
from profiler.recordings import MIXED, recording_path
from tests.api.pages.browser.conftest import Site
from tests.api.pages.chromium import inspect, wait_until, watched_page
from tests.api.services import counts_trace, plan_for_replay, ready_plan, ready_trace

pytestmark = pytest.mark.xdist_group("browser")


def test_from_a_first_start_to_a_rollback(chromium: Browser, site: Site) -> None:
    with watched_page(chromium) as page:
        page.goto(site.url)
        expect(page.get_by_role("heading", name="Begin here")).to_be_visible()
        inspect(page, "01-first-start")

        # Upload, and look at the heat.
        page.get_by_role("link", name="Upload a recording").first.click()
        page.set_input_files('input[type="file"]', recording_path(MIXED))
        page.get_by_label("Name (the file's by default)").fill("evening")
        page.get_by_role("button", name="Upload").click()
        page.wait_for_url(re.compile(r"/traces/trc_"))
        expect(page.locator("html")).to_have_attribute("data-heat", "drawn")
        inspect(page, "02-heat-without-a-plan")
        trace_url = page.url

        # Register the engine.
        page.goto(f"{site.url}/engines/new")
        page.get_by_label("Name").fill("replay")
        page.get_by_label("Address").fill(site.engine_url)
        page.get_by_role("button", name="Register").click()
        page.wait_for_url(re.compile(r"/engines/eng_"))
        expect(page.locator(".ids .state")).to_have_text("ready")
        inspect(page, "03-engine")

        # Plan for it.
        page.goto(trace_url)
        page.get_by_role("link", name="Make a plan").click()
        page.get_by_label("Engine; its shape and dispatch are taken over").select_option(label="replay")
        page.get_by_label("Time limit in seconds").fill("3")
        inspect(page, "04-make-a-plan")
        page.get_by_role("button", name="Make the plan").click()
        page.wait_for_url(re.compile(r"/plans/pln_"))
        expect(page.locator(".headline")).to_contain_text("of routed tokens stay on their home GPU")
        inspect(page, "05-plan-proposed")
        plan_url = page.url

        # Approve and push.
        page.get_by_label("Why").fill("better than what runs")
        page.get_by_role("button", name="Approve").click()
        expect(page.locator(".ids .state")).to_have_text("approved")
        expect(page.locator(".timeline").first).to_contain_text("better than what runs")
        page.get_by_label("Layers at a time").fill("2")
        page.get_by_label("Measure for, seconds").fill("1")
        page.get_by_role("button", name="Push it into the engine").click()
        page.wait_for_url(re.compile(r"/rollouts/rol_"))
        expect(page.locator(".ids .state")).to_have_text("applied")
        expect(page.get_by_role("heading", name="Chunks")).to_be_visible()
        inspect(page, "06-rollout-applied")
        pushed_url = page.url

        page.goto(f"{site.url}/")
        expect(page.get_by_text("running: the newest plan")).to_be_visible()
        inspect(page, "07-overview")

        # Take it back.
        page.goto(pushed_url)
        page.get_by_label("Why").fill("worse at night")
        page.get_by_role("button", name="Roll back").click()
        page.wait_for_url(lambda url: "/rollouts/rol_" in url and url != pushed_url)
        expect(page.locator(".ids .state")).to_have_text("applied")
        page.goto(pushed_url)
        expect(page.locator(".ids .state")).to_have_text("rolled back")
        inspect(page, "08-rolled-back")

        # What is left behind.
        for name, path in (
            ("09-plans", "/plans"), ("10-rollouts", "/rollouts"), ("11-jobs", "/jobs"), ("12-recordings", "/traces"),
            ("13-compare-windows", "/compare"), ("14-compare-layouts", "/compare?kind=layouts"),
            ("15-whoami", "/whoami"), ("19-schedules", "/schedules"),
        ):  # fmt: skip
            page.goto(site.url + path)
            page.wait_for_load_state("networkidle")
            inspect(page, name)
        page.goto(f"{site.url}/jobs")
        page.locator("tbody a").first.click()
        page.wait_for_load_state("networkidle")
        inspect(page, "16-job")
        plan_id = plan_url.rsplit("/", 1)[-1]
        page.goto(f"{trace_url}/traffic?plan={plan_id}&token_bytes=4096")
        expect(page.locator("[data-loading]")).to_be_hidden()
        inspect(page, "17-traffic")
        page.goto(f"{trace_url}?plan={plan_id}&sort=together&expert=2.10")
        expect(page.get_by_role("heading", name="Layer 2, expert 10")).to_be_visible()
        inspect(page, "18-heat-with-an-expert")


@pytest.fixture(scope="module")
def windows_url(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a recording with 12 windows, 4 of 6 layers with experts, 40 experts."""
    counts_WLE = np.random.default_rng(3).integers(1, 1000, (12, 6, 40))
    counts_WLE[:, :2] = 0
    content = counts_trace(tmp_path_factory.mktemp("windows"), counts_WLE.tolist())
    return f"{site.url}/traces/{ready_trace(site.service, content)}"


def test_windows_play_and_a_link_shows_the_same(chromium: Browser, windows_url: str) -> None:
    with watched_page(chromium) as page:
        page.goto(windows_url)
        expect(page.locator("html")).to_have_attribute("data-heat", "drawn")
        before = pixels(page)
        page.get_by_role("button", name="Play").click()
        wait_until(page, "Number(document.querySelector('[data-window]').value) >= 3")
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Play")).to_be_visible()
        assert pixels(page) != before
        page.get_by_label("Order of experts").select_option("row")
        wait_until(page, "new URLSearchParams(location.search).get('sort') === 'row'")
        shown, window = pixels(page), page.locator("[data-window]").input_value()
        address = page.url
        assert f"window={window}" in address
        with watched_page(chromium) as other:
            other.goto(address)
            other.wait_for_load_state("networkidle")
            assert pixels(other) == shown
            assert other.locator("[data-window]").input_value() == window


def test_the_map_is_walked_by_keyboard_and_layers_without_traffic_are_no_cells(
    chromium: Browser, windows_url: str
) -> None:
    with watched_page(chromium) as page:
        page.goto(windows_url)
        expect(page.locator("html")).to_have_attribute("data-heat", "drawn")
        page.locator("#heat .frame").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).to_contain_text("Layer 0: no experts, or no traffic")
        page.keyboard.press("Enter")
        expect(page.locator("#expert")).to_be_hidden()
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("End")
        expect(page.locator("#heat-said")).to_contain_text("Layer 3, expert 39")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Layer 3, expert 39")).to_be_focused()
        expect(page.locator("[data-expert-windows] tbody tr")).to_have_count(12)
        transparent = page.evaluate(
            "[...document.querySelector('#heat canvas').getContext('2d').getImageData(0, 0, 40, 6).data]"
            ".filter((_, at) => at % 4 === 3).map((alpha) => alpha === 0)"
        )
        assert transparent == [True] * 80 + [False] * 160


def test_the_theme_is_chosen_and_kept(chromium: Browser, site: Site) -> None:
    with watched_page(chromium) as page:
        page.goto(site.url)
        background = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(background)
        for _ in range(2):
            page.get_by_role("button", name="Theme").click()
        dark = page.evaluate(background)
        assert dark != light
        page.goto(f"{site.url}/plans")
        assert page.evaluate(background) == dark


def test_problems_are_told_where_the_button_is(chromium: Browser, site: Site) -> None:
    plan_id = ready_plan(site.service, plan_for_replay(), engine_id=None, state=PlanState.PROPOSED)
    with watched_page(chromium, refusals=(412,)) as page, watched_page(chromium) as other:
        for each in (page, other):
            each.goto(f"{site.url}/plans/{plan_id}")
        other.get_by_role("button", name="Reject").click()
        expect(other.locator(".ids .state")).to_have_text("rejected")
        with page.expect_response("**/reject"):
            page.get_by_role("button", name="Reject").click()
        expect(page.get_by_role("alert").filter(has_text="VERSION_CHANGED")).to_be_visible()


def pixels(page: Page) -> str:
    return str(page.evaluate("document.querySelector('#heat canvas').toDataURL()"))
