"""The operator's guide: its commands are moeplan's, and what needs neither root nor a cluster is run as it is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from sqlalchemy import func, select

from api.store.models import Base
from tests.api.cli.command import Moeplan
from tests.api.cycle import Served, rebalance, served
from tests.api.services import replay_engine
from tests.databases import open_database
from tests.deploy.moeplan_commands import require_command, unknown_settings
from tests.deploy.tools import DEPLOY, ROOT, program

GUIDE = DEPLOY / "README.md"
TEXT = GUIDE.read_text()
KEY = "admin-key-of-the-tests"
LISTS = ("engines", "traces", "plans", "rollouts", "jobs", "keys", "audit")


def block(name: str) -> str:
    """Return the commands of the guide that have a name."""
    (found,) = re.findall(rf"^```sh {name}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def run_block(
    name: str, variables: Mapping[str, str] = MappingProxyType({}), *, directory: Path = ROOT, before: str = ""
) -> str:
    """Run commands of the guide in a shell that stops at the first that fails; return what they print."""
    return run_text(before + block(name), variables, directory=directory)


def run_text(text: str, variables: Mapping[str, str], *, directory: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], env={**os.environ, "PATH": path, **variables},
        cwd=directory, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


class Reader:
    """Somebody who follows the guide line by line and puts in the ids that were printed last.

    Parameters
    ----------
    moeplan
        Takes the commands, in this process: each would spend a second or two on loading libraries.
    variables
        Where ``export`` lines are carried out.
    instead
        What they have where the guide says something else.
    """

    def __init__(self, moeplan: Moeplan, variables: pytest.MonkeyPatch, *, instead: Mapping[str, str]) -> None:
        self._moeplan, self._variables, self._instead = moeplan, variables, instead
        self._printed: dict[str, str] = {}

    def follow(self, name: str) -> None:
        for line in block(name).splitlines():
            for words, mine in self._instead.items():
                line = line.replace(words, mine)
            line = re.sub(r"\b([a-z]{3})_\.\.\.", lambda kind: self._printed[kind[1]], line)
            command, *arguments = (os.path.expandvars(word) for word in shlex.split(line))
            if command == "export":
                for each in arguments:
                    self._variables.setenv(*each.split("=", 1))
                continue
            assert command == "moeplan", f"{line}: only moeplan's commands are followed"
            ran = self._moeplan(*arguments)
            assert ran.code == 0, f"{line}\n{ran.out}{ran.err}"
            found = re.findall(r"\b[a-z]{3}_[0-9a-hjkmnp-tv-z]{26}\b", ran.out)
            self._printed |= {each[:3]: each for each in found}


def moeplan_lines(text: str) -> set[str]:
    """Return every moeplan command of every block, and of every table and sentence that holds a whole one."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [re.split(r"\s+# ", line)[0].strip() for found in blocks for line in found.splitlines()]
    spans = re.findall(r"`(moeplan [a-z][^`]*)`", text)
    return {line for line in [*lines, *spans] if line.startswith("moeplan ")}


@pytest.mark.parametrize("line", sorted(moeplan_lines(TEXT) | moeplan_lines((ROOT / "README.md").read_text())))
def test_commands_are_moeplans(line: str) -> None:
    arguments = [re.sub(r"^\$\w+$", "value", part) for part in shlex.split(line)[1:]]
    numbers = {"G": "8", "M": "80"}  # what the guide leaves to the reader
    require_command([numbers.get(part, part) for part in arguments])


def test_variables_are_settings_and_files_are_there() -> None:
    assert unknown_settings(TEXT) == set()
    for name in re.findall(r"(?:deploy|tests)/[\w./@*-]+", TEXT + (DEPLOY / "THREATS.md").read_text()):
        plain = name.rstrip(".")
        assert list(ROOT.glob(plain)), f"{plain} is named and not there"
    for name in re.findall(r"`(test_\w+\.py)`", (DEPLOY / "THREATS.md").read_text()):
        assert list((ROOT / "tests").rglob(name)), f"{name} is named and not there"


def contents(service: Served) -> dict[str, Any]:
    """Return everything that users see, files included."""
    found: dict[str, Any] = {name: service.get(f"/v1/{name}", params={"limit": 200}).json()["items"] for name in LISTS}
    for plan in found["plans"]:
        found[plan["id"]] = service.get(f"/v1/plans/{plan['id']}/file").content
    for trace in found["traces"]:
        found[trace["id"]] = service.get(f"/v1/traces/{trace['id']}/content").content
    return found


def back_up_and_restore(folder: Path, name: str, before: dict[str, str], after: dict[str, str]) -> None:
    """Back up while the service runs, restore elsewhere, and go on there.

    Parameters
    ----------
    before, after
        Variables of the two installations.
    """
    first, second = folder / "first", folder / "second"
    backup = str(folder / "backup")
    for place in (first, second):
        place.mkdir()
    with replay_engine() as engine_url:
        with served(first, key=KEY, **before) as service:
            engine = service.post("/v1/engines", {"name": "decode", "url": engine_url}, status=201)
            rebalance(service, engine["id"])
            service.post("/v1/keys", {"name": "grafana", "level": "read"}, status=201)
            there = contents(service)
            run_block(f"backup-{name}", {"BACKUP": backup, "MOEPLAN_DATA_DIR": str(first / "data"), **before})
            service.post("/v1/keys", {"name": "too late", "level": "read"}, status=201)
        run_block(f"restore-{name}", {"BACKUP": backup, "MOEPLAN_DATA_DIR": str(second / "data"), **after})
        with served(second, key=KEY, **after) as service:
            assert contents(service) == there
            trace_id = there["traces"][0]["id"]
            plan = service.done(service.post("/v1/plans", {"trace_ids": [trace_id], "engine_id": engine["id"]}))
            assert service.get(f"/v1/plans/{plan['id']}").json()["state"] == "proposed"


def test_the_first_engine_and_its_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line as it stands there; traffic after the push is measured for a shorter time."""
    with (
        replay_engine(admin_key="KEY-of-the-engine") as engine_url,
        served(tmp_path, key=KEY, MOEPLAN_ENGINE_KEY="KEY-of-the-engine") as service,
    ):
        instead = {
            "http://127.0.0.1:8430": service.url, "http://127.0.0.1:30000": engine_url, "--steps 2000": "--steps 60",
            "moeplan push": "moeplan push --measure-seconds 1", "moeplan plan trc": "moeplan plan --time-limit 2 trc",
        }  # fmt: skip
        monkeypatch.chdir(tmp_path)
        for variable in ("MOEPLAN_TOKEN", "MOEPLAN_ADMIN_API_KEY"):
            monkeypatch.setenv(variable, KEY)
        reader = Reader(Moeplan(capsys), monkeypatch, instead=instead)
        for name in ("first-engine", "first-schedule", "keys"):
            reader.follow(name)
        assert "</html>" in (tmp_path / "plan.html").read_text()
        rollouts = service.get("/v1/rollouts").json()["items"]
        assert [rollout["state"] for rollout in rollouts] == ["applied", "rolled_back"]
        (key,) = service.get("/v1/keys").json()["items"]
        assert key["revoked_at"] is not None


def test_secrets_for_containers(tmp_path: Path) -> None:
    program("openssl")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    run_block("containers", directory=tmp_path)
    secrets = tmp_path / "deploy" / "compose" / "secrets"
    wanted = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["secrets"]
    assert {Path(each["file"]).name for each in wanted.values()} == {file.name for file in secrets.iterdir()}
    assert all(file.read_text().strip() for file in secrets.iterdir())
    assert secrets.stat().st_mode & 0o777 == 0o700


def test_secrets_for_kubernetes() -> None:
    """Without a cluster: kubectl makes them and sends nothing."""
    program("kubectl")
    program("openssl")
    nothing_sent = 'kubectl() { command kubectl "$@" --dry-run=client -o name; }\n'
    made = run_block("kubernetes", before=nothing_sent).split()
    assert made == ["namespace/moeplan", "secret/moeplan", "secret/moeplan-engine-keys"]


def rows(database_url: str) -> dict[str, int]:
    """Return how many rows every table has."""
    database = open_database(database_url)
    with database.connection() as connection:
        tables = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in Base.metadata.sorted_tables
        }
    database.close()
    return tables


def go_back_and_forth(database_url: str, **variables: str) -> None:
    """Take the schema of a service that was used to the first revision and back, as the guide says."""
    before = rows(database_url)
    assert before["plans"] > 0
    assert before["audit_events"] > 0
    run_block("downgrade", variables)
    run_block("upgrade", variables)
    assert rows(database_url) == before


def test_backup_and_restore_with_sqlite(tmp_path: Path) -> None:
    back_up_and_restore(tmp_path, "sqlite", {}, {})
    data = tmp_path / "first" / "data"
    go_back_and_forth(f"sqlite:///{data / 'moeplan.db'}", MOEPLAN_DATA_DIR=str(data))


def test_backup_and_restore_with_postgresql(tmp_path: Path, empty_postgres_url: Callable[[], str]) -> None:
    program("pg_dump")
    urls = [{"MOEPLAN_DATABASE_URL": empty_postgres_url()} for _ in range(2)]
    command = [sys.executable, "-c", "from api.cli import main; main()", "db", "upgrade"]
    subprocess.run(command, env={**os.environ, **urls[0]}, check=True, capture_output=True)
    back_up_and_restore(tmp_path, "postgresql", *urls)
    go_back_and_forth(urls[0]["MOEPLAN_DATABASE_URL"], MOEPLAN_DATA_DIR=str(tmp_path / "first" / "data"), **urls[0])
