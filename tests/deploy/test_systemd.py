"""The systemd units: as systemd reads them, how exposed they are, and whether they fit moeplan and each other."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from api.settings import read_settings
from tests.deploy.moeplan_commands import require_command, unknown_settings
from tests.deploy.tools import DEPLOY, program, run

UNITS = DEPLOY / "systemd"
NAMES = ("moeplan-database.service", "moeplan.service", "moeplan-worker@1.service")
MOST_EXPOSED = 15
"""Tenths on systemd's scale of 0 (closed) to 100; a service without any protection has 96."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a machine on which moeplan is installed, with systemd's own units."""
    folder = tmp_path_factory.mktemp("root")
    system = next(path for path in (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system")) if path.is_dir())
    shutil.copytree(system, folder / "usr/lib/systemd/system", symlinks=True)
    (folder / "lib").symlink_to("usr/lib")
    ours = folder / "etc/systemd/system"
    shutil.copytree(UNITS, ours)
    command = folder / "opt/moeplan/bin/moeplan"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_systemd_reads_every_line(root: Path, name: str) -> None:
    assert run(program("systemd-analyze"), "verify", "--man=no", f"--root={root}", name) == ""


def test_systemd_says_what_it_does_not_know(root: Path) -> None:
    bad = root / "etc/systemd/system/bad.service"
    bad.write_text((UNITS / "moeplan.service").read_text().replace("PrivateTmp", "PrivateTemp"))
    said = run(program("systemd-analyze"), "verify", "--man=no", f"--root={root}", "bad.service")
    assert "Unknown key" in said  # a warning, not a failure: so the units must be verified in silence


@pytest.mark.parametrize("name", NAMES)
def test_little_is_left_open(root: Path, name: str) -> None:
    security = [program("systemd-analyze"), "security", "--offline=true", f"--root={root}"]
    run(*security, f"--threshold={MOST_EXPOSED}", name)
    with pytest.raises(AssertionError):
        run(*security, "--threshold=1", name)


@pytest.mark.parametrize("name", NAMES)
def test_moeplan_is_run_with_commands_and_settings_that_it_has(name: str) -> None:
    text = (UNITS / name.replace("@1", "@")).read_text()
    (line,) = re.findall(r"^ExecStart=/opt/moeplan/bin/moeplan (.*)$", text, re.MULTILINE)
    require_command(shlex.split(line))
    assert unknown_settings(text) == set()


def test_all_units_have_the_same_protection_and_the_same_files() -> None:
    def shared(name: str) -> list[str]:
        text = (UNITS / name.replace("@1", "@")).read_text()
        return text[text.index("Environment=") :].split("\n\n[Install]")[0].splitlines()

    assert shared(NAMES[0]) == shared(NAMES[1]) == shared(NAMES[2])


def test_nothing_starts_before_the_schema_is_up_to_date() -> None:
    for name in NAMES[1:]:
        text = (UNITS / name.replace("@1", "@")).read_text()
        assert "Requires=moeplan-database.service" in text
        assert re.search(r"^After=.*moeplan-database\.service", text, re.MULTILINE)


def test_a_worker_keeps_its_name() -> None:
    assert "--name %l-%i" in (UNITS / "moeplan-worker@.service").read_text()


def test_the_settings_file_is_one() -> None:
    assert read_settings(UNITS / "moeplan.toml").workers == 0
