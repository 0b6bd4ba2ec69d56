"""How much may be sent, and that what is refused leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.http import app as http_app
from api.service.context import Service
from tests.api.http.conftest import client_of
from tests.api.services import service_on

MOST_BYTES = 4096


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service that takes two files of 4 KiB together."""
    monkeypatch.setattr(http_app, "FORM_OVERHEAD_BYTES", 1024)
    limits = {"max_upload_bytes": MOST_BYTES, "max_upload_files": 2}
    with service_on(f"sqlite:///{tmp_path}/moeplan.db", tmp_path / "data", **limits) as opened:
        yield opened


def sent(client: TestClient, *sizes: int) -> tuple[int, str]:
    files = [("files", (f"rank{number}.json", b" " * size)) for number, size in enumerate(sizes)]
    answer = client.post("/v1/traces", files=files)
    return answer.status_code, answer.json().get("code", "")


def test_as_much_as_is_allowed_is_taken(small: Service) -> None:
    assert sent(client_of(small), MOST_BYTES // 2, MOST_BYTES // 2)[0] == 202
    assert len(list(small.files.stored())) == 1  # equal files are stored once


@pytest.mark.parametrize(
    ("sizes", "refusal"),
    [((2 * MOST_BYTES,), (413, "TOO_LARGE")), ((MOST_BYTES, MOST_BYTES), (413, "TOO_LARGE")),
     ((1, 1, 1), (400, "BAD_REQUEST"))],
)  # fmt: skip
def test_more_is_refused_and_nothing_of_it_kept(
    small: Service, sizes: tuple[int, ...], refusal: tuple[int, str]
) -> None:
    client = client_of(small)
    assert sent(client, *sizes) == refusal
    assert client.get("/v1/traces").json()["items"] == []
    assert list(small.files.stored()) == []
    assert [path for path in small.settings.data_dir.rglob("*.tmp")] == []


def test_a_compressed_body_is_not_unpacked(small: Service) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    refused = client_of(small).post("/v1/engines", content=b"\x1f\x8b" + b"x" * 100, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "BAD_REQUEST")
