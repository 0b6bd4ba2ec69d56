"""HTTP to a service: what is tried again and what is not, whose errors are raised, and what no text shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from api.cli.exit_codes import exit_code_of
from api.client import connection
from api.client.connection import ServiceConnection, Upload
from api.client.problems import error_of
from api.errors import ApiError, BadSetting, NotFound, ServiceAnswerInvalid, ServiceRefused, ServiceUnreachable
from placement.errors import CodedError, Infeasible, NotEnoughMemory
from tests.api.client.serving import answering

TOKEN = "the-token-of-the-tests"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PAUSE_S", 0.001)


@contextmanager
def answering_with(*answers: Response) -> Iterator[tuple[ServiceConnection, list[Request]]]:
    """A service that gives these answers one after the other, the last one again and again."""
    seen: list[Request] = []

    async def answer(request: Request) -> Response:
        await request.body()
        seen.append(request)
        return answers[min(len(seen), len(answers)) - 1]

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "PATCH", "DELETE"])])
    with answering(app) as url, ServiceConnection(url, TOKEN) as service:
        yield service, seen


def problem(status: int, code: str, **more: Any) -> Response:
    body = {"code": code, "detail": f"{code} it is.", "remedies": [], **more}
    return JSONResponse(body, status_code=status, media_type="application/problem+json")


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (404, "NOT_FOUND", NotFound, 2), (422, "INFEASIBLE", Infeasible, 3), (422, "NOT_ENOUGH_MEMORY", CodedError, 3),
        (418, "OF_A_NEWER_MOEPLAN", ServiceRefused, 2), (409, "PARTIAL_APPLY", CodedError, 2),
    ],
)  # fmt: skip
def test_problems_are_the_errors_of_the_command_line(
    status: int, code: str, kind: type[CodedError], exit_code: int
) -> None:
    with answering_with(problem(status, code, remedies=["do this"])) as (service, _), pytest.raises(kind) as raised:
        service.get("/v1/engines")
    error = raised.value
    assert (error.code, error.detail, error.remedies) == (code, f"{code} it is.", ("do this",))
    assert exit_code_of(error) == exit_code


def test_every_error_of_ours_comes_back_as_it_was() -> None:
    def tree(kind: type[CodedError]) -> list[type[CodedError]]:
        return [kind, *(each for below in kind.__subclasses__() for each in tree(below))]

    for kind in tree(ApiError):
        assert error_of({"code": kind.code, "detail": "d"}).code == kind.code
    assert NotEnoughMemory.code == "NOT_ENOUGH_MEMORY"


@pytest.mark.parametrize("code", ["", "lower case", "X" * 100, None, "A\x1b[31m"])
def test_codes_that_are_none_are_not_printed(code: str | None) -> None:
    assert error_of({"code": code, "detail": "d"}).code == "SERVICE_REFUSED"


def test_reading_is_tried_again() -> None:
    answers = (problem(503, "DATABASE_UNREACHABLE"), problem(503, "DATABASE_UNREACHABLE"), JSONResponse({"a": 1}))
    with answering_with(*answers) as (service, seen):
        assert service.get("/v1/engines") == {"a": 1}
    assert len(seen) == 3


def test_a_change_is_tried_again_only_under_its_key() -> None:
    answers = (problem(503, "DATABASE_UNREACHABLE"), JSONResponse({"a": 1}, status_code=202))
    with answering_with(*answers) as (service, seen), pytest.raises(CodedError):
        service.post("/v1/plans/x/approve")
    assert len(seen) == 1
    with answering_with(*answers) as (service, seen):
        assert service.post("/v1/plans", {"x": 1}, once="k").json == {"a": 1}
    assert [request.headers["idempotency-key"] for request in seen] == ["k", "k"]


def test_an_upload_is_sent_again_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    file.write_text("{}" * 1000)
    answers = (problem(503, "DATABASE_UNREACHABLE"), JSONResponse({"id": "trc"}, status_code=202))
    with answering_with(*answers) as (service, seen):
        service.upload("/v1/traces", Upload([("counts.json", file)], {"name": "n"}), once="k")
    first, second = (int(request.headers["content-length"]) for request in seen)
    assert first == second > 2000


def test_the_token_is_sent_and_in_no_text() -> None:
    with answering_with(problem(401, "KEY_REFUSED")) as (service, seen), pytest.raises(CodedError) as raised:
        service.get("/v1/engines")
    assert seen[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in f"{service!r}{raised.value!r}{raised.value.detail}{vars(service)}"


def test_no_redirect_is_followed() -> None:
    away = Response(status_code=307, headers={"location": "http://127.0.0.1:9/v1/engines"})
    with answering_with(away) as (service, seen), pytest.raises(ServiceAnswerInvalid):
        service.get("/v1/engines")
    assert len(seen) == 1


def test_lists_are_read_page_by_page() -> None:
    pages = [JSONResponse({"items": [{"id": str(n)}], "next_cursor": c}) for n, c in ((1, "x"), (2, "y"), (3, None))]
    with answering_with(*pages) as (service, seen):
        assert [row["id"] for row in service.pages("/v1/jobs", {"state": None}, most=10)] == ["1", "2", "3"]
    assert [dict(request.query_params) for request in seen][1] == {"limit": "9", "cursor": "x"}
    with answering_with(*pages) as (service, _):
        assert len(service.pages("/v1/jobs", most=2)) == 2


def test_a_download_is_whole_or_absent(tmp_path: Path) -> None:
    out = tmp_path / "trace.parquet"
    with answering_with(problem(409, "WRONG_STATE")) as (service, _), pytest.raises(CodedError):
        service.download("/v1/traces/x/content", out)
    assert list(tmp_path.iterdir()) == []
    with answering_with(Response(b"PAR1" * 1000)) as (service, _):
        service.download("/v1/traces/x/content", out)
    assert out.read_bytes() == b"PAR1" * 1000


@pytest.mark.parametrize("answer", [Response(b"<html>"), Response(b"nginx", status_code=404)])
def test_what_is_no_service_is_said(answer: Response) -> None:
    with answering_with(answer) as (service, _), pytest.raises(ServiceAnswerInvalid):
        service.get("/v1/engines")


def test_a_proxy_without_its_service_is_tried_again() -> None:
    with answering_with(Response(b"bad gateway", status_code=502)) as (service, _), pytest.raises(ServiceUnreachable):
        service.get("/v1/engines")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8430", "ftp://x", "http://", "http://user:hunter2@x", "http://x?key=hunter2", "http://x#hunter2"]
)
def test_urls_that_are_none_are_refused_and_secrets_not_repeated(url: str) -> None:
    with pytest.raises(BadSetting) as refused:
        ServiceConnection(url)
    assert "hunter2" not in refused.value.detail


@pytest.mark.parametrize("token", ["", "with space", "line\nbreak", "ümlaut"])
def test_tokens_that_cannot_be_sent_are_refused(token: str) -> None:
    with pytest.raises(BadSetting) as refused:
        ServiceConnection("http://127.0.0.1:9", token)
    assert token == "" or token not in refused.value.detail


def test_a_token_over_plain_http_is_warned_of() -> None:
    assert ServiceConnection("http://127.0.0.1:9", TOKEN).notices == ()
    assert ServiceConnection("https://moeplan.example", TOKEN).notices == ()
    (notice,) = ServiceConnection("http://moeplan.example", TOKEN).notices
    assert notice.code == "TOKEN_IN_CLEAR"
    assert TOKEN not in notice.detail
