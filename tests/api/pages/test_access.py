"""Signing in: who sees what, and what a page of somebody else cannot do."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.http.edge import SESSION_COOKIE
from api.service import browser_sessions
from api.service import keys as key_service
from api.service.context import Service
from api.states import Level, PlanState
from api.store import keys as key_rows
from api.store.columns import now
from tests.api.http.conftest import ADMIN_KEY, LOOPBACK, READ_KEY, client_of
from tests.api.http.test_permissions import pages
from tests.api.schedules import an_engine, scheduled
from tests.api.services import ACTOR, plan_for_replay, ready_plan, service_on

ENGINE = {"name": "gone", "url": "http://127.0.0.1:9"}


def sign_in(service: Service, key: str) -> TestClient:
    client = client_of(service)
    answer = client.post("/login", data={"key": key, "next": "/plans"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/plans")
    return client


def token_of(client: TestClient) -> str:
    (token,) = re.findall(r'<meta name="csrf-token" content="([0-9a-f]+)">', client.get("/").text)
    return str(token)


def test_without_keys_this_machine_needs_no_sign_in(browser: TestClient) -> None:
    assert browser.get("/").status_code == 200
    assert "no key yet" in browser.get("/login").text


def test_without_keys_nobody_else_gets_in(service: Service) -> None:
    stranger = client_of(service, host="10.0.0.5")
    answer = stranger.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2F")
    assert "MOEPLAN_ADMIN_API_KEY" in stranger.get("/login").text


def test_with_keys_every_page_asks_for_one_and_goes_back_there(guarded: Service) -> None:
    nobody = client_of(guarded)
    for path in ("/", "/traces", "/traces/trc_x?window=2", "/plans", "/rollouts", "/jobs", "/whoami"):
        answer = nobody.get(path, follow_redirects=False)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=%2F")
    assert (
        nobody.get("/traces?cursor=a", follow_redirects=False).headers["location"]
        == "/login?next=%2Ftraces%3Fcursor%3Da"
    )


OPEN_PAGES = {"GET /login", "POST /login", "POST /logout", "GET /static/{version}/{name:path}"}
"""What is shown to everybody; every other page asks for a key."""


@pytest.fixture
def opened_with(guarded: Service) -> dict[str, TestClient]:
    """A browser without a session, two with one that was made up or is over, and one of each level."""
    made_up = client_of(guarded)
    made_up.cookies.set(SESSION_COOKIE, "e30." + "0" * 64, domain="127.0.0.1")
    with guarded.database.writing() as session:
        key, secret = key_service.make(session, ACTOR, name="gone", level=Level.ADMIN, expires_at=None)
    over = sign_in(guarded, secret)
    with guarded.database.writing() as session:
        key_service.revoke(session, ACTOR, key_rows.find(session, key.id), why="left")
    return {
        "nothing": client_of(guarded), "a made-up session": made_up, "a session that is over": over,
        "read": sign_in(guarded, READ_KEY), "admin": sign_in(guarded, ADMIN_KEY),
    }  # fmt: skip


def test_every_page_that_is_not_named_here_asks_for_a_key(guarded: Service, opened_with: dict[str, TestClient]) -> None:
    there = pages(guarded)
    assert there >= OPEN_PAGES
    closed = sorted(there - OPEN_PAGES)
    assert len(closed) > 10
    wrong = {}
    for operation in closed:
        method, path = operation.split(" ", 1)
        assert method == "GET", f"{operation} changes something; changes are made through /v1"
        for kind, client in opened_with.items():
            answer = client.get(re.sub(r"\{[^}]*\}", "0", path), follow_redirects=False)
            sent_to_login = answer.status_code == 303 and answer.headers["location"].startswith("/login?next=")
            let_in = answer.status_code in (200, 404)
            if not (let_in if kind in ("read", "admin") else sent_to_login):
                wrong[operation, kind] = answer.status_code
    assert wrong == {}


def test_every_page_forbids_browsers_to_frame_or_keep_it(guarded: Service, opened_with: dict[str, TestClient]) -> None:
    for operation in sorted(pages(guarded) - {"GET /static/{version}/{name:path}"}):
        method, path = operation.split(" ", 1)
        for kind in ("nothing", "admin"):
            answer = opened_with[kind].request(method, re.sub(r"\{[^}]*\}", "0", path), follow_redirects=False)
            headers = answer.headers
            assert headers["x-content-type-options"] == "nosniff", operation
            assert headers["referrer-policy"] in ("no-referrer", "same-origin"), operation
            assert headers["cache-control"] in ("no-store", "private, no-cache"), operation
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy, (operation, policy)
            assert "frame-ancestors 'none'" in policy, (operation, policy)
            assert "unsafe" not in policy, (operation, policy)
            assert ("set-cookie" in headers) == (operation == "POST /logout"), operation


def test_the_cookie_is_for_this_service_alone_and_holds_no_key(guarded: Service) -> None:
    answer = client_of(guarded).post("/login", data={"key": ADMIN_KEY}, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert ADMIN_KEY not in cookie
    behind_tls = client_of(guarded).post(
        "/login", data={"key": ADMIN_KEY}, headers={"X-Forwarded-Proto": "https"}, follow_redirects=False
    )
    assert "Secure" in behind_tls.headers["set-cookie"]


def test_a_wrong_key_is_refused_and_not_repeated(guarded: Service) -> None:
    answer = client_of(guarded).post("/login", data={"key": "not-a-key-of-this-one"})
    assert answer.status_code == 401
    assert "not one of this service" in answer.text
    assert "not-a-key-of-this-one" not in answer.text
    assert "set-cookie" not in answer.headers


def test_a_session_changes_things_only_with_its_token(guarded: Service) -> None:
    client = sign_in(guarded, ADMIN_KEY)
    without = client.post("/v1/engines", json=ENGINE)
    assert (without.status_code, without.json()["code"]) == (403, "CSRF_TOKEN_WRONG")
    assert client.post("/v1/engines", json=ENGINE, headers={"X-CSRF-Token": "0" * 64}).status_code == 403
    token = token_of(client)
    assert client.post("/v1/engines", json=ENGINE, headers={"X-CSRF-Token": token}).status_code == 201
    other = sign_in(guarded, ADMIN_KEY)
    assert other.post("/v1/engines", json=ENGINE, headers={"X-CSRF-Token": token}).status_code == 403


def test_a_read_key_sees_everything_and_no_buttons(guarded: Service) -> None:
    plan_id = ready_plan(guarded, plan_for_replay(), engine_id=None, state=PlanState.PROPOSED)
    schedule = f"/schedules/{scheduled(guarded, an_engine(guarded, 'e1'))}"
    reader, admin = sign_in(guarded, READ_KEY), sign_in(guarded, ADMIN_KEY)
    path = f"/plans/{plan_id}"
    for each in (path, schedule):
        assert 'data-action="' in admin.get(each).text
    for each in (path, schedule, "/", "/traces", "/plans", "/plans/new", "/engines/new", "/schedules", "/jobs"):
        text = reader.get(each).text
        assert "data-action=" not in text, each
        assert "data-upload" not in text, each
    token = token_of(reader)
    refused = reader.post(f"/v1{path}/approve", json={}, headers={"X-CSRF-Token": token})
    assert (refused.status_code, refused.json()["code"]) == (403, "ADMIN_NEEDED")


def test_revoking_a_key_ends_its_sessions(guarded: Service) -> None:
    with guarded.database.writing() as session:
        key, secret = key_service.make(session, ACTOR, name="ops", level=Level.ADMIN, expires_at=None)
    client = sign_in(guarded, secret)
    assert "key:ops" in client.get("/").text
    with guarded.database.writing() as session:
        key_service.revoke(session, ACTOR, key_rows.find(session, key.id), why="left")
    assert client.get("/", follow_redirects=False).status_code == 303


def test_an_expired_key_ends_its_sessions(guarded: Service) -> None:
    with guarded.database.writing() as session:
        key, secret = key_service.make(
            session, ACTOR, name="ops", level=Level.READ, expires_at=now() + timedelta(hours=1)
        )
    client = sign_in(guarded, secret)
    with guarded.database.writing() as session:
        key_rows.find(session, key.id).expires_at = now() - timedelta(seconds=1)
    assert client.get("/v1/engines").json()["code"] == "SESSION_OVER"


def test_sessions_end_by_themselves(guarded: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sign_in(guarded, ADMIN_KEY)
    assert client.get("/v1/engines").status_code == 200
    later = browser_sessions.time.time() + browser_sessions.LONGEST_S + 1
    monkeypatch.setattr(browser_sessions.time, "time", lambda: later)
    assert client.get("/v1/engines").status_code == 401


@pytest.mark.parametrize("cookie", ["", "x", "a.b", "e30.0000", "." * 50, "x" * 5000, "e30." + "0" * 64])
def test_made_up_sessions_open_nothing(guarded: Service, cookie: str) -> None:
    client = client_of(guarded)
    client.cookies.set(SESSION_COOKIE, cookie, domain="127.0.0.1")
    assert client.get("/v1/engines").status_code == 401


def test_a_session_of_another_level_cannot_be_made_of_ones_own(guarded: Service) -> None:
    client = sign_in(guarded, READ_KEY)
    content, _, signature = client.cookies[SESSION_COOKIE].partition(".")
    forged = client_of(guarded)
    forged.cookies.set(SESSION_COOKIE, f"{content[:-2]}AA.{signature}", domain="127.0.0.1")
    assert forged.get("/v1/engines").status_code == 401


def test_signing_out_forgets_the_session(guarded: Service) -> None:
    client = sign_in(guarded, ADMIN_KEY)
    client.post("/logout")
    assert client.get("/v1/engines").status_code == 401


@pytest.mark.parametrize(
    "next_path",
    ["https://attacker.example/", "//attacker.example", "/\\attacker.example", "javascript:x", "plans", "/a\nb"],
)
def test_signing_in_leads_nowhere_else(guarded: Service, next_path: str) -> None:
    answer = client_of(guarded).post("/login", data={"key": ADMIN_KEY, "next": next_path}, follow_redirects=False)
    assert answer.headers["location"] == "/"


def test_a_form_of_somebody_elses_page_signs_nobody_in(guarded: Service) -> None:
    told = {"Origin": "http://attacker.example"}
    answer = client_of(guarded).post("/login", data={"key": ADMIN_KEY}, headers=told, follow_redirects=False)
    assert "set-cookie" not in answer.headers
    own = client_of(guarded).post(
        "/login", data={"key": ADMIN_KEY}, headers={"Origin": LOOPBACK}, follow_redirects=False
    )
    assert "set-cookie" in own.headers


def test_processes_of_one_service_take_each_others_sessions(guarded: Service) -> None:
    client = sign_in(guarded, ADMIN_KEY)
    secret = (guarded.settings.data_dir / browser_sessions.SECRET_FILE).read_bytes()
    again = client_of(guarded)
    again.cookies.set(SESSION_COOKIE, client.cookies[SESSION_COOKIE], domain="127.0.0.1")
    assert again.get("/v1/engines").status_code == 200
    assert (guarded.settings.data_dir / browser_sessions.SECRET_FILE).read_bytes() == secret
    assert (guarded.settings.data_dir / browser_sessions.SECRET_FILE).stat().st_mode & 0o077 == 0


def test_processes_without_a_common_folder_share_a_given_secret(database_file: str, tmp_path: Path) -> None:
    told = {"admin_api_key": ADMIN_KEY, "session_secret": "a-secret-of-both-machines"}
    with (
        service_on(database_file, tmp_path / "one", **told) as one,
        service_on(database_file, tmp_path / "two", **told) as two,
    ):
        client, other = sign_in(one, ADMIN_KEY), client_of(two)
        other.cookies.set(SESSION_COOKIE, client.cookies[SESSION_COOKIE], domain="127.0.0.1")
        assert other.get("/v1/engines").status_code == 200
        assert "a-secret-of-both-machines" not in repr(one.settings)
