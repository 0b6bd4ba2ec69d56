"""The operator's guide: its commands are moeplan's, and those for backup and restore are run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.cycle import Served, rebalance, served
from tests.api.services import replay_engine
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


def run_block(name: str, **variables: str) -> None:
    """Run commands of the guide in a shell that stops at the first that fails."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block(name)], env={**os.environ, "PATH": path, **variables},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def moeplan_lines() -> list[str]:
    """Return every moeplan command of every block, and of every table and sentence that holds a whole one."""
    blocks = re.findall(r"^```sh[^\n]*\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    lines = [line.split("    #")[0].strip() for text in blocks for line in text.splitlines()]
    spans = re.findall(r"`(moeplan [^`]*)`", TEXT)
    return [line for line in [*lines, *spans] if line.startswith("moeplan ")]


@pytest.mark.parametrize("line", sorted(set(moeplan_lines())))
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
            run_block(f"backup-{name}", BACKUP=backup, MOEPLAN_DATA_DIR=str(first / "data"), **before)
            service.post("/v1/keys", {"name": "too late", "level": "read"}, status=201)
        run_block(f"restore-{name}", BACKUP=backup, MOEPLAN_DATA_DIR=str(second / "data"), **after)
        with served(second, key=KEY, **after) as service:
            assert contents(service) == there
            trace_id = there["traces"][0]["id"]
            plan = service.done(service.post("/v1/plans", {"trace_ids": [trace_id], "engine_id": engine["id"]}))
            assert service.get(f"/v1/plans/{plan['id']}").json()["state"] == "proposed"


def test_backup_and_restore_with_sqlite(tmp_path: Path) -> None:
    back_up_and_restore(tmp_path, "sqlite", {}, {})


def test_backup_and_restore_with_postgresql(tmp_path: Path, empty_postgres_url: Callable[[], str]) -> None:
    program("pg_dump")
    urls = [{"MOEPLAN_DATABASE_URL": empty_postgres_url()} for _ in range(2)]
    command = [sys.executable, "-c", "from api.cli import main; main()", "db", "upgrade"]
    subprocess.run(command, env={**os.environ, **urls[0]}, check=True, capture_output=True)
    back_up_and_restore(tmp_path, "postgresql", *urls)
