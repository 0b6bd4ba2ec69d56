"""A real Chromium on a real server, for tests and for the benchmark of pages."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from api.http.app import create_app
from api.service.context import Service
from profiler.http_server import HttpServer, listening_on, url_of

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium here (Debian: apt-get install chromium; or name one in MOEPLAN_CHROMIUM)"
AXE = Path(__file__).parent / "vendor" / "axe-core-4.14.1" / "axe.min.js"
DESK, PHONE = (1280, 800), (390, 844)

PATIENCE_MS = 120_000
"""Only what hangs takes so long; a busy machine must not fail a test."""


def chromium_program() -> str | None:
    """Return the browser to drive, None where there is none."""
    named = os.environ.get("MOEPLAN_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def running_chromium(program: str) -> Iterator[Browser]:
    """Start a browser without a window. It reads only what the test serves, so it needs no sandbox to run as root."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_MS)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(service: Service) -> Iterator[str]:
    """Serve a service on a free port of the loopback."""
    config = uvicorn.Config(create_app(service), log_config=None, access_log=False, timeout_graceful_shutdown=2)
    with (
        listening_on("127.0.0.1", 0) as listener,
        HttpServer(config).serving_beside(listener, name="moeplan-under-test"),
    ):
        yield url_of(listener)


@contextmanager
def watched_page(browser: Browser, *, refusals: tuple[int, ...] = ()) -> Iterator[Page]:
    """Open a page in a browser of its own; whatever its console complains about fails the test.

    ``refusals`` are statuses that the test provokes.
    """
    context = browser.new_context(viewport={"width": DESK[0], "height": DESK[1]}, color_scheme="light")
    complaints: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
    finally:
        context.close()
    expected = tuple(f"responded with a status of {status} " for status in refusals)
    assert [each for each in complaints if not any(status in each for status in expected)] == []


def axe_violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong with a page, one line each."""
    page.evaluate(AXE.read_text(encoding="utf-8"))  # through the debugger: the page's policy lets no script in
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['help']} at {[node['target'] for node in each['nodes']][:3]}"
        for each in found["violations"]
    ]


def wait_until(page: Page, expression: str) -> None:
    """Wait until an expression is true in a page; asked from here, since the page's policy lets it evaluate no text."""
    until_s = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(expression):
        if time.monotonic() > until_s:
            raise AssertionError(f"not within {PATIENCE_MS / 1000:g} s: {expression}")
        time.sleep(0.02)


def clipped_px(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def keep_screenshot(page: Page, name: str) -> None:
    """Keep a picture of the page in the folder that MOEPLAN_SCREENSHOTS names, if it does."""
    folder = os.environ.get("MOEPLAN_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def inspect(page: Page, name: str) -> None:
    """Hold a page against what every page must be: accessible and unclipped, in light and dark, on desk and phone."""
    for scheme, size, where in (("light", DESK, "desk"), ("dark", DESK, "desk"), ("dark", PHONE, "phone")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": size[0], "height": size[1]})
        if where == "desk":
            assert axe_violations(page) == [], (name, scheme)
        assert clipped_px(page) <= 0, (name, where)
        if (scheme, where) != ("dark", "desk"):
            keep_screenshot(page, f"{name}-{where}-{scheme}")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
