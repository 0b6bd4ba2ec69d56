"""Who gets in, and what nobody gets to see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from api.service.context import Service
from api.store.columns import now
from api.store.models import IdempotentAnswer, Key
from tests.api.http.conftest import ADMIN_KEY, READ_KEY, client_of
from tests.api.services import wait_for

pytestmark = pytest.mark.one_database

ENGINE = {"name": "prefill", "url": "http://127.0.0.1:9"}


def code_of(response: object) -> str:
    code: str = response.json()["code"]  # type: ignore[attr-defined]
    assert response.headers["content-type"] == "application/problem+json"  # type: ignore[attr-defined]
    return code


def test_health_is_open_and_everything_else_needs_a_key(service: Service) -> None:
    nobody = client_of(service)
    for path in ("/healthz", "/readyz", "/metrics"):
        assert nobody.get(path).status_code == 200
    refused = nobody.get("/v1/engines")
    assert (refused.status_code, code_of(refused)) == (401, "KEY_MISSING")
    assert refused.headers["www-authenticate"].startswith("Bearer")


def test_a_read_key_reads_and_changes_nothing(reader: TestClient) -> None:
    assert reader.get("/v1/engines").status_code == 200
    refused = reader.post("/v1/engines", json=ENGINE)
    assert (refused.status_code, code_of(refused)) == (403, "ADMIN_NEEDED")
    assert reader.get("/v1/keys").status_code == 403


@pytest.mark.parametrize("header", ["Bearer wrong-key", "Bearer ", "Basic YTpi", "Bearer " + "x" * 5000, "bearer"])
def test_wrong_keys_are_refused(service: Service, header: str) -> None:
    refused = client_of(service).get("/v1/engines", headers={"Authorization": header})
    assert refused.status_code == 401


def test_a_key_is_shown_once_and_only_its_hash_is_kept(service: Service, admin: TestClient) -> None:
    made = admin.post("/v1/keys", json={"name": "grafana", "level": "read"}, headers={"Idempotency-Key": "k"})
    assert made.status_code == 201
    secret = made.json()["key"]
    listed = admin.get("/v1/keys")
    assert secret not in listed.text
    assert listed.json()["items"][0]["starts_with"] == secret[:8]
    with service.database.reading() as session:
        (row,) = session.scalars(sa.select(Key)).all()
        assert secret not in str(vars(row))
        assert session.scalars(sa.select(IdempotentAnswer)).all() == []
    assert client_of(service, secret).get("/v1/engines").status_code == 200
    assert client_of(service, secret).post("/v1/engines", json=ENGINE).status_code == 403


def test_use_of_a_key_is_written_down(service: Service, admin: TestClient) -> None:
    made = admin.post("/v1/keys", json={"name": "ci", "level": "read"}).json()
    assert made["last_used_at"] is None
    client_of(service, made["key"]).get("/v1/engines")
    used = wait_for(lambda: admin.get(f"/v1/keys/{made['id']}").json()["last_used_at"], what="the use of the key")
    assert abs(now() - datetime.fromisoformat(used)) < timedelta(minutes=1)


def test_a_read_does_not_wait_for_a_writer(service: Service, admin: TestClient) -> None:
    """Once a minute the use of a key is written down: not while the request waits."""
    made = admin.post("/v1/keys", json={"name": "ci", "level": "read"}).json()
    with service.database.writing() as session:
        session.get_one(Key, made["id"]).name = "locked"
        session.flush()
        for _ in range(3):
            assert client_of(service, made["key"]).get("/v1/engines").status_code == 200
        with service.database.reading() as other:
            assert other.get_one(Key, made["id"]).last_used_at is None
    wait_for(lambda: admin.get(f"/v1/keys/{made['id']}").json()["last_used_at"], what="the use of the key")


def test_a_revoked_key_opens_nothing(service: Service, admin: TestClient) -> None:
    made = admin.post("/v1/keys", json={"name": "ci", "level": "admin"}).json()
    assert client_of(service, made["key"]).delete(f"/v1/keys/{made['id']}").status_code == 204
    refused = client_of(service, made["key"]).get("/v1/engines")
    assert (refused.status_code, code_of(refused)) == (401, "KEY_REFUSED")
    assert admin.delete(f"/v1/keys/{made['id']}").status_code == 409


def test_an_expired_key_opens_nothing(service: Service, admin: TestClient) -> None:
    later = (now() + timedelta(hours=1)).isoformat()
    made = admin.post("/v1/keys", json={"name": "ci", "level": "read", "expires_at": later}).json()
    assert client_of(service, made["key"]).get("/v1/engines").status_code == 200
    with service.database.writing() as session:
        session.get_one(Key, made["id"]).expires_at = now() - timedelta(seconds=1)
    assert client_of(service, made["key"]).get("/v1/engines").status_code == 401


def test_a_key_that_would_have_expired_is_not_made(admin: TestClient) -> None:
    over = datetime(2020, 1, 1, tzinfo=UTC).isoformat()
    assert admin.post("/v1/keys", json={"name": "ci", "level": "read", "expires_at": over}).status_code == 422


def test_without_any_key_this_machine_gets_in(open_service_: Service) -> None:
    assert client_of(open_service_).post("/v1/engines", json=ENGINE).status_code == 201
    assert client_of(open_service_, host="::1", url="http://[::1]:8430").get("/v1/engines").status_code == 200


@pytest.mark.parametrize(
    ("host", "url", "headers"),
    [
        ("10.0.0.5", "http://127.0.0.1:8430", {}),
        ("127.0.0.1", "http://attacker.example:8430", {}),  # a name that resolves to the loopback
        ("127.0.0.1", "http://127.0.0.1:8430", {"Origin": "http://attacker.example"}),
        ("127.0.0.1", "http://127.0.0.1:8430", {"Origin": "null"}),
        ("10.0.0.5", "http://127.0.0.1:8430", {"X-Forwarded-For": "127.0.0.1"}),
    ],
)
def test_without_any_key_nobody_else_does(open_service_: Service, host: str, url: str, headers: dict[str, str]) -> None:
    client = client_of(open_service_, host=host, url=url)
    refused = client.get("/v1/engines", headers=headers)
    assert (refused.status_code, code_of(refused)) == (401, "KEY_MISSING")


def test_with_the_first_key_the_door_is_shut_and_stays_so(open_service_: Service) -> None:
    made = client_of(open_service_).post("/v1/keys", json={"name": "first", "level": "admin"}).json()
    assert client_of(open_service_).get("/v1/engines").status_code == 401
    client_of(open_service_, made["key"]).delete(f"/v1/keys/{made['id']}")
    assert client_of(open_service_).get("/v1/engines").status_code == 401


def test_engine_keys_go_in_by_reference_and_never_come_out(
    service: Service, admin: TestClient, reader: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "the-engines-own-secret"
    monkeypatch.setenv("ENGINE_KEY_OF_TEST", secret)
    made = admin.post("/v1/engines", json={**ENGINE, "key": "env:ENGINE_KEY_OF_TEST"})
    assert made.status_code == 201
    assert made.json()["has_key"]
    for text in (made.text, reader.get("/v1/engines").text, reader.get("/v1/audit").text, reader.get("/metrics").text):
        assert secret not in text
        assert "ENGINE_KEY_OF_TEST" not in text


@pytest.mark.parametrize(
    "key", ["the-secret-itself", "file:relative/path", "env:1", "env:A B", "http://x", "file:/a\nb"]
)
def test_a_secret_sent_as_such_is_refused_and_not_repeated(admin: TestClient, key: str) -> None:
    refused = admin.post("/v1/engines", json={**ENGINE, "key": key})
    assert (refused.status_code, code_of(refused)) == (422, "BAD_SECRET_REFERENCE")
    assert key not in refused.json()["detail"]
    assert admin.get("/v1/engines").json()["items"] == []


def test_keys_of_the_settings_are_in_no_answer(admin: TestClient) -> None:
    admin.post("/v1/engines", json=ENGINE)
    for path in ("/v1/engines", "/v1/keys", "/v1/audit", "/metrics", "/openapi.json", "/readyz"):
        text = admin.get(path).text
        assert ADMIN_KEY not in text
        assert READ_KEY not in text


def test_every_change_says_who_and_why(admin: TestClient) -> None:
    made = admin.post("/v1/engines", json=ENGINE, headers={"X-Request-ID": "ticket-42"}).json()
    admin.request("DELETE", f"/v1/engines/{made['id']}", json={"reason": "moved to eu2"})
    removed, registered = admin.get("/v1/audit", params={"subject_id": made["id"]}).json()["items"]
    assert (registered["who"], registered["action"], registered["request_id"]) == (
        "setting:admin", "engine.registered", "ticket-42",
    )  # fmt: skip
    assert (removed["action"], removed["why"]) == ("engine.removed", "moved to eu2")
