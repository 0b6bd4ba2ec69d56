"""Marked secrets go through a whole cycle; afterwards they are looked for in everything that was written or said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.api.cli.command import Moeplan
from tests.api.cycle import Served, rebalance, served
from tests.api.services import replay_engine

pytestmark = pytest.mark.one_database

ADMIN = "marked-admin-key-8f14e45f"
READ = "marked-read-key-c9f0f895"
ENGINE = "marked-engine-key-45c48cce"
ENGINE_IN_VARIABLE = "marked-engine-variable-d3d94468"
NOT_A_KEY = "mp_marked-unknown-key-6512bd43"
PASSWORD = "marked-password-c20ad4d7"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database; that of PostgreSQL has a password."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'data' / 'moeplan.db'}"
    make: Callable[[], str] = request.getfixturevalue("empty_postgres_url")
    return make().replace("moeplan@", f"moeplan:{PASSWORD}@")


def test_no_secret_is_in_anything_that_stays(
    tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = tmp_path / "engine-key"
    key_file.write_text(ENGINE + "\n")
    (tmp_path / "data").mkdir()
    with monkeypatch.context() as patched:
        patched.setenv("MOEPLAN_DATABASE_URL", database)
        upgraded = Moeplan(capsys)("db", "upgrade", "--data-dir", tmp_path / "data")
    said = {"moeplan db upgrade": upgraded.out + upgraded.err}
    variables = {
        "MOEPLAN_DATABASE_URL": database, "MOEPLAN_API_KEY": READ, "ENGINE_KEY_OF_TEST": ENGINE_IN_VARIABLE,
        "MOEPLAN_LOG_LEVEL": "debug",
    }  # fmt: skip
    with (
        replay_engine(admin_key=ENGINE) as engine_url,
        replay_engine(admin_key=ENGINE_IN_VARIABLE) as other_url,
        served(tmp_path, key=ADMIN, **variables) as service,
    ):
        made_key, session = _go_through(service, engine_url, other_url, key_file)
        said |= {f"the process {number}": line for number, line in _command_lines(service.process_id)}
    said["serve.log"] = service.log
    said |= {f"{place}, answer {number}": text for number, (place, text) in enumerate(service.answers)}
    said |= {
        str(path): path.read_bytes().decode("latin-1") for path in (tmp_path / "data").rglob("*") if path.is_file()
    }
    if not database.startswith("sqlite"):
        said |= _tables(database)
    secrets = {ADMIN, READ, ENGINE, ENGINE_IN_VARIABLE, NOT_A_KEY, PASSWORD, made_key, *session}
    found = [(place, secret) for place, text in said.items() for secret in secrets if secret in text]
    assert found == []
    assert len(service.answers) > 25
    assert sum(len(text) for text in said.values()) > 10**5  # there was something to look through


def _go_through(service: Served, engine_url: str, other_url: str, key_file: Path) -> tuple[str, list[str]]:
    """Do what is done in a week, mistakes included; return a key that was made and the browser's session."""
    made_key: str = service.client.post("/v1/keys", json={"name": "ci", "level": "admin"}).json()["key"]
    service.answers.pop()  # the one answer that shows it
    register = {"name": "decode", "url": engine_url, "key": f"file:{key_file}", "read_key": f"file:{key_file}"}
    engine = service.post("/v1/engines", register, status=201)
    assert engine["state"] == "ready", engine
    other = service.post(
        "/v1/engines", {"name": "prefill", "url": other_url, "key": "env:ENGINE_KEY_OF_TEST"}, status=201
    )
    assert other["state"] == "ready", other
    made = rebalance(service, engine["id"])
    for place in ("file", "report", "export", "comparison"):
        service.get(f"/v1/plans/{made['plan_id']}/{place}")
    # An engine that refuses the key, and says it in its answer.
    key_file.write_text(ENGINE_IN_VARIABLE)
    failed = service.ended(service.post("/v1/traces/capture", {"engine_id": engine["id"], "steps": 5}))
    assert failed["state"] == "failed"
    service.post(f"/v1/engines/{engine['id']}/read", status=200)
    # Keys where they do not belong.
    for refused in (
        {"name": "x", "url": engine_url, "key": ENGINE},
        {"name": "x", "url": f"http://user:{PASSWORD}@127.0.0.1:9"},
        {"name": "x", "url": engine_url, "password": PASSWORD},
    ):
        assert service.client.post("/v1/engines", json=refused).status_code == 422
    for wrong in (f"Bearer {NOT_A_KEY}", f"Basic {NOT_A_KEY}", NOT_A_KEY):
        assert service.get("/v1/engines", headers={"Authorization": wrong}).status_code == 401
    for right in (READ, made_key):
        assert service.get("/v1/engines", headers={"Authorization": f"Bearer {right}"}).status_code == 200
    assert service.get("/v1/engines", params={"key": ADMIN}).status_code in (200, 422)
    for path in ("/v1/audit", "/v1/keys", "/v1/jobs", "/v1/rollouts", "/v1/traces", "/metrics", "/openapi.json"):
        service.get(path)
    return made_key, _sign_in(service)


def _sign_in(service: Served) -> list[str]:
    """Sign a browser in and look around; return its cookie."""
    with httpx.Client(base_url=service.url) as browser:
        for key, status in ((NOT_A_KEY, 401), (ADMIN, 303)):
            signed_in = browser.post("/login", data={"key": key, "next": "/"})
            assert signed_in.status_code == status
            service.answers.append(("POST /login", signed_in.text))
        pages = [browser.get(path) for path in ("/", "/plans", "/traces", "/rollouts", "/jobs", "/whoami")]
        service.answers += [(f"GET {page.request.url.path}", f"{page.headers}\n{page.text}") for page in pages]
        assert {page.status_code for page in pages} == {200}
        return [signed_in.cookies["moeplan_session"]]


def _command_lines(process_id: int) -> Iterator[tuple[int, str]]:
    """Yield the command lines of a process and its children, which every user of a machine can read."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if process_id in (parent, int(folder.name)):
                yield int(folder.name), (folder / "cmdline").read_bytes().decode()
        except (FileNotFoundError, ProcessLookupError):
            continue


def _tables(database: str) -> dict[str, str]:
    """Return all rows of all tables of all schemas as text."""
    url = make_url(database)
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        names = connection.execute(
            "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        return {
            name: "\n".join(row for (row,) in connection.execute(f"SELECT t::text FROM {name} t".encode()))
            for (name,) in names
        }


def test_a_secret_that_is_there_would_be_found(tmp_path: Path) -> None:
    with served(tmp_path, key=ADMIN) as service:
        service.client.get("/v1/engines", headers={"X-Request-ID": NOT_A_KEY})
    assert NOT_A_KEY in service.log
    with pytest.raises(httpx.HTTPError):
        httpx.get(service.url)
