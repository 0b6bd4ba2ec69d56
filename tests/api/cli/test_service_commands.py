"""``moeplan serve``, ``worker`` and ``db`` as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.cli.command import Moeplan
from tests.api.services import wait_for

ADMIN_KEY = "admin-key-of-the-tests"


@contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Run ``moeplan serve`` on a free port; its process, URL and first lines."""
    command = [sys.executable, "-c", "from api.cli import main; main()", "serve", "--port", "0", *arguments]
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1,
            env={**os.environ, "MOEPLAN_DATA_DIR": str(folder / "data"), **variables},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("moeplan serves on "), (folder / "serve.log").read_text()
            yield process, line.split()[3].rstrip(";"), [line]
        finally:
            process.kill()
            process.wait()


def test_serve_makes_its_database_keeps_a_worker_and_ends_when_told(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, url, _):
        assert process.stdout is not None
        assert "There is no key" in process.stdout.readline()
        assert (tmp_path / "data" / "moeplan.db").exists()
        wait_for(lambda: httpx.get(f"{url}/readyz").json()["workers"] == 1, what="a worker")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    log = (tmp_path / "serve.log").read_text()
    assert all(line.startswith("{") for line in log.splitlines()), log


def test_a_worker_of_serve_that_dies_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path, MOEPLAN_ADMIN_API_KEY=ADMIN_KEY) as (process, url, _):
        wait_for(lambda: httpx.get(f"{url}/readyz").json()["workers"] == 1, what="a worker")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        found = [
            int(child) for task in Path(f"/proc/{process.pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ] if children.exists() else []  # fmt: skip
        if not found:
            pytest.skip("the children of a process cannot be listed here")
        os.kill(found[0], signal.SIGKILL)
        wait_for(
            lambda: (tmp_path / "serve.log").read_text().count('"worker is ready"') == 2, what="the worker's successor"
        )


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_a_key_only_the_loopback_is_listened_on(moeplan: Moeplan, tmp_path: Path, host: str) -> None:
    line = moeplan.refused("serve", "--host", host, "--port", 0, "--data-dir", tmp_path, code="BAD_SETTING")
    assert "MOEPLAN_ADMIN_API_KEY" in line


def test_an_outdated_database_is_not_served(moeplan: Moeplan, tmp_path: Path) -> None:
    (tmp_path / "moeplan.db").write_bytes(b"")
    assert moeplan("db", "upgrade", "--data-dir", tmp_path).code == 0
    assert moeplan("db", "check", "--data-dir", tmp_path, "--json").json["differences"] == []
    line = moeplan.refused("db", "check", "--data-dir", tmp_path / "other", code="DATABASE_OUTDATED")
    assert "moeplan db upgrade" in line


def test_the_password_of_a_database_is_not_shown(moeplan: Moeplan) -> None:
    url = "postgresql://u:hunter2-hunter2@127.0.0.1:9/d"
    for command in (("db", "check"), ("db", "upgrade")):
        line = moeplan.refused(*command, "--database-url", url, code="DATABASE_UNREACHABLE")
        assert "hunter2" not in line
