"""What holds for every route: problems, ids, pages, versions, repeated requests, sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from api.errors import ApiError
from api.http.problems import status_of
from api.service.context import Service
from api.store.models import Engine, Job, Trace
from placement.errors import CodedError
from tests.api.http.conftest import client_of

pytestmark = pytest.mark.one_database

ENGINE = {"name": "prefill", "url": "http://127.0.0.1:9"}
COUNTS = json.dumps({"logical_count": [[4, 3, 2, 1]]}).encode()


def upload(client: TestClient, *, key: str | None = None, name: str = "counts.json", content: bytes = COUNTS) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/v1/traces", files={"files": (name, content)}, headers=headers)


def test_problems_have_the_codes_of_the_command_line(admin: TestClient) -> None:
    refused = admin.post("/v1/engines", json={**ENGINE, "url": "http://user:hunter2-hunter2@host:1"})
    problem = refused.json()
    assert refused.headers["content-type"] == "application/problem+json"
    assert (refused.status_code, problem["code"], problem["status"]) == (422, "BAD_OPTION", 422)
    assert problem["type"] == "urn:moeplan:error:BAD_OPTION"
    assert problem["request_id"] == refused.headers["x-request-id"]
    assert "hunter2" not in refused.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "NO_SUCH_ROUTE"), ("PUT", "/v1/engines", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v1/engines/eng_x", 404, "NOT_FOUND"), ("GET", "/v1/jobs?limit=0", 422, "BAD_REQUEST"),
        ("GET", "/v1/jobs?cursor=!!", 422, "BAD_CURSOR"), ("GET", "/v1/jobs?state=lost", 422, "BAD_REQUEST"),
    ],
)  # fmt: skip
def test_every_refusal_is_a_problem(admin: TestClient, method: str, path: str, status: int, code: str) -> None:
    refused = admin.request(method, path)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert refused.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"null", b'{"name": "a"}', b'{"nam": 1}'])
def test_bodies_that_are_not_what_is_asked(admin: TestClient, body: bytes) -> None:
    refused = admin.post("/v1/engines", content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code in (400, 422)
    assert refused.json()["code"] == "BAD_REQUEST"


def test_every_error_has_a_status() -> None:
    def tree(kind: type[CodedError]) -> list[type[CodedError]]:
        return [kind, *(each for below in kind.__subclasses__() for each in tree(below))]

    for kind in tree(ApiError):
        assert 400 <= status_of(kind()) < 600


def test_ids_of_requests_are_kept_when_they_are_plain(admin: TestClient) -> None:
    assert admin.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 65, "a\\nb", '"><script>'):
        given = admin.get("/healthz", headers={"X-Request-ID": bad}).headers["x-request-id"]
        assert given != bad


def test_pages_by_cursor(admin: TestClient) -> None:
    made = [admin.post("/v1/keys", json={"name": f"k{number}", "level": "read"}).json()["id"] for number in range(5)]
    first = admin.get("/v1/keys", params={"limit": 3}).json()
    second = admin.get("/v1/keys", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in first["items"] + second["items"]] == sorted(made, reverse=True)
    assert second["next_cursor"] is None


def test_what_is_known_is_not_sent_again(admin: TestClient) -> None:
    made = admin.post("/v1/engines", json=ENGINE)
    path = made.headers["location"]
    tag = admin.get(path).headers["etag"]
    known = admin.get(path, headers={"If-None-Match": f'"other", {tag}'})
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)


def test_a_change_names_the_version_it_was_made_from(admin: TestClient) -> None:
    path = admin.post("/v1/engines", json=ENGINE).headers["location"]
    tag = admin.get(path).headers["etag"]
    change = {"labels": {"cluster": "eu1"}}
    missing = admin.patch(path, json=change)
    assert (missing.status_code, missing.json()["code"]) == (428, "VERSION_NEEDED")
    changed = admin.patch(path, json=change, headers={"If-Match": tag})
    assert (changed.status_code, changed.json()["labels"]) == (200, {"cluster": "eu1"})
    late = admin.patch(path, json={"labels": {}}, headers={"If-Match": tag})
    assert (late.status_code, late.json()["code"]) == (412, "VERSION_CHANGED")
    assert admin.get(path).json()["labels"] == {"cluster": "eu1"}


def test_a_repeated_request_is_done_once(service: Service, admin: TestClient) -> None:
    first, second = upload(admin, key="once"), upload(admin, key="once")
    assert first.status_code == second.status_code == 202
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert first.headers["location"] == second.headers["location"]
    with service.database.reading() as session:
        assert len(session.scalars(sa.select(Trace)).all()) == 1
        assert len(session.scalars(sa.select(Job)).all()) == 1


def test_another_request_under_the_same_key_is_refused(admin: TestClient) -> None:
    upload(admin, key="once")
    other = upload(admin, key="once", content=COUNTS + b" ")
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")


def test_keys_of_two_callers_are_two(service: Service, admin: TestClient) -> None:
    secret = admin.post("/v1/keys", json={"name": "other", "level": "admin"}).json()["key"]
    first, second = upload(admin, key="same"), upload(client_of(service, secret), key="same")
    assert first.json()["id"] != second.json()["id"]


def test_a_refused_request_may_be_tried_again_under_its_key(service: Service, admin: TestClient) -> None:
    admin.post("/v1/engines", json=ENGINE)
    headers = {"Idempotency-Key": "retry"}
    assert admin.post("/v1/engines", json=ENGINE, headers=headers).status_code == 409
    with service.database.writing() as session:
        session.execute(sa.delete(Engine))
        session.execute(sa.text("DELETE FROM audit_events"))
    assert admin.post("/v1/engines", json=ENGINE, headers=headers).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb"])
def test_bad_idempotency_keys_are_refused(admin: TestClient, key: str) -> None:
    assert upload(admin, key=key).status_code == 422


def test_large_bodies_are_refused_before_they_are_read(admin: TestClient) -> None:
    refused = admin.post("/v1/engines", content=b"x" * 2**21, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (413, "TOO_LARGE")


def test_a_body_without_a_length_is_cut_off_where_it_is_too_large(admin: TestClient) -> None:
    def endless() -> Any:
        for _ in range(64):
            yield b'"' + b"x" * 2**16

    refused = admin.post("/v1/engines", content=endless(), headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (413, "TOO_LARGE")


def test_the_description_is_complete(admin: TestClient) -> None:
    description = admin.get("/openapi.json").json()
    assert "HTTPValidationError" not in json.dumps(description)
    for path, operations in description["paths"].items():
        for operation in operations.values():
            assert operation.get("description"), path
            if path.startswith("/v1"):
                assert {"401", "403", "422", "503"} <= set(operation["responses"]), path
                assert operation["security"], path
    bodies = ["EngineIn", "PlanIn", "CaptureIn", "RolloutIn", "KeyIn", "EngineChange", "TraceChange"]
    assert all(description["components"]["schemas"][name]["examples"] for name in bodies)
