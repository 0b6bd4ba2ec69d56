"""What pages are made of: nothing inline, nothing from elsewhere, nothing that was changed."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.pages.assets import MEDIA_TYPES, STATIC_DIR, Assets

PAGES = STATIC_DIR.parent
VENDORED = [STATIC_DIR / "vendor" / "echarts-6.1.0", Path(__file__).parent / "vendor" / "axe-core-4.14.1"]
TEMPLATES = sorted((PAGES / "templates").glob("*.j2"))
LARGEST_BYTES = 1_500_000


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: folder.name)
def test_vendored_files_are_those_of_the_release_with_their_licence(folder: Path) -> None:
    listed = dict(reversed(line.split(maxsplit=1)) for line in (folder / "SHA256SUMS").read_text().splitlines())
    files = {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    assert set(listed) == files
    assert "LICENSE" in files
    for name, sha256 in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256, name


def test_no_page_can_be_heavier_than_the_limit() -> None:
    everything = sum(path.stat().st_size for path in STATIC_DIR.rglob("*") if path.suffix in MEDIA_TYPES)
    assert everything < LARGEST_BYTES


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_templates_have_nothing_inline_and_nothing_from_elsewhere(template: Path) -> None:
    text = template.read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert "<style" not in text
    assert re.findall(r"""\s(?:style|on[a-z]+)\s*=\s*["']""", text) == []
    assert re.findall(r"""(?:src|href|action)=["']\s*(?:https?:)?//""", text) == []
    assert "| safe" not in text


def test_own_modules_ask_only_this_service() -> None:
    for module in (STATIC_DIR / "js").glob("*.js"):
        assert "http" not in re.sub(r"`HTTP_|https and|HTTP", "", module.read_text(encoding="utf-8")), module.name


def test_pages_forbid_what_they_do_not_need(browser: TestClient) -> None:
    for path in ("/", "/login", "/plans/pln_unknown"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_files_are_compressed_and_kept_for_good_under_their_hash(browser: TestClient) -> None:
    address = re.search(r'href="(/static/[0-9a-f]{16}/css/pages.css)"', browser.get("/").text)
    assert address is not None
    sent = browser.get(address[1])
    assert sent.headers["content-encoding"] == "gzip"
    assert "immutable" in sent.headers["cache-control"]
    assert sent.content == (STATIC_DIR / "css" / "pages.css").read_bytes()
    plain = browser.get(address[1], headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == sent.content


@pytest.mark.parametrize("name", ["css/none.css", "../app.py", "vendor/echarts-6.1.0/LICENSE", "%2e%2e/app.py"])
def test_nothing_else_is_served(browser: TestClient, name: str) -> None:
    version = Assets().version
    assert browser.get(f"/static/{version}/{name}").status_code == 404
    assert browser.get("/static/0123456789abcdef/css/pages.css").status_code == 404


def test_the_address_changes_with_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a {}")
    first = Assets(tmp_path)
    (tmp_path / "a.css").write_text("b {}")
    assert Assets(tmp_path).version != first.version
    with pytest.raises(KeyError):
        first.url("b.css")
    (tmp_path / "LICENSE").write_text("not served")
    assert gzip.decompress(first._found["a.css"].compressed) == b"a {}"
