"""Signing in, in a real Chromium."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.api.http.conftest import ADMIN_KEY, READ_KEY
from tests.api.pages.chromium import axe_violations, clipped_px, keep_screenshot, watched_page

pytestmark = pytest.mark.xdist_group("browser")


def test_a_key_is_asked_for_once_and_leads_where_one_wanted_to_go(chromium: Browser, guarded_url: str) -> None:
    with watched_page(chromium) as page:
        page.goto(f"{guarded_url}/plans")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert axe_violations(page) == []
        assert clipped_px(page) <= 0
        keep_screenshot(page, "20-sign-in")
        page.get_by_label("Key").fill(ADMIN_KEY)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Plans")).to_be_visible()
        assert page.url == f"{guarded_url}/plans"
        assert page.evaluate("document.cookie") == ""  # no script can read the session

        page.goto(f"{guarded_url}/engines/new")
        page.get_by_label("Name").fill("gone")
        page.get_by_label("Address").fill("http://127.0.0.1:9")
        page.get_by_role("button", name="Register").click()
        expect(page.locator(".ids .state")).to_have_text("unreachable")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.goto(guarded_url)
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_read_key_shows_pages_without_buttons(chromium: Browser, guarded_url: str) -> None:
    with watched_page(chromium) as page:
        page.goto(guarded_url)
        page.get_by_label("Key").fill(READ_KEY)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="Recordings and heat")).to_be_visible()
        for path in ("/", "/traces", "/plans", "/plans/new", "/engines/new"):
            page.goto(guarded_url + path)
            expect(page.locator("main button")).to_have_count(0)
