"""The container file: by its linter, and whether what it copies and runs is there. It is not built here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.moeplan_commands import require_command, unknown_settings
from tests.deploy.tools import DEPLOY, ROOT, program, run

FILE = DEPLOY / "Containerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", FILE.read_text()))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def values(instructions: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for instruction, rest in instructions if instruction == name]


def test_the_linter_has_nothing_to_say() -> None:
    # DL3008 and the like ask for versions of Debian packages: none is installed. DL3059 wants one long RUN.
    assert run(program("hadolint"), "--ignore", "DL3059", FILE) == ""


def test_the_linter_would_say_something(tmp_path: Path) -> None:
    bad = tmp_path / "Containerfile"
    bad.write_text("FROM python:latest\nRUN cd /tmp && pip install torch\n")
    done = subprocess.run([program("hadolint"), bad], capture_output=True, text=True)
    assert "DL3007" in done.stdout


def test_it_runs_as_nobody_from_a_second_stage(instructions: list[tuple[str, str]]) -> None:
    assert len(values(instructions, "FROM")) == 2
    assert values(instructions, "USER") == ["10001:10001"]
    last = [name for name, _ in instructions].index("USER")
    assert not [name for name, _ in instructions[last:] if name in ("RUN", "COPY")]


def test_what_is_copied_is_there_and_not_ignored(instructions: list[tuple[str, str]]) -> None:
    let_in = {
        line.removeprefix("!") for line in Path(f"{FILE}.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = {
        source for rest in values(instructions, "COPY") if not rest.startswith("--from") for source in rest.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)
    packages = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packages <= copied


def test_the_versions_that_it_installs_are_the_tested_ones(instructions: list[tuple[str, str]]) -> None:
    (written,) = (rest for rest in values(instructions, "RUN") if "requirements.txt" in rest)
    assert "--constraint constraints.txt --requirement requirements.txt" in written
    script = written.split(" > requirements.txt")[0]
    for extra in ("", "ray"):
        environment = {"PATH": str(Path(sys.executable).parent), "EXTRA": extra}
        printed = subprocess.run(
            ["/bin/sh", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        wanted = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"].get(extra, [])
        assert printed.stdout.splitlines() == wanted


def test_moeplan_is_run_with_commands_and_settings_that_it_has(instructions: list[tuple[str, str]]) -> None:
    assert values(instructions, "ENTRYPOINT") == ['["moeplan"]']
    (command,) = values(instructions, "CMD")
    require_command(json.loads(command))
    assert unknown_settings(FILE.read_text()) == set()


def test_the_health_check_asks_the_service(instructions: list[tuple[str, str]]) -> None:
    (check,) = values(instructions, "HEALTHCHECK")
    assert "http://127.0.0.1:8430/healthz" in check
    compile(json.loads(check[check.index("[") :])[2], "healthcheck", "exec")


def test_the_tag_in_its_first_line_is_this_version() -> None:
    version = PROJECT["project"]["version"]
    assert set(re.findall(r"moeplan:([0-9][^ )]*)", FILE.read_text())) == {version, f"{version}-ray"}
