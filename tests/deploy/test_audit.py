"""What the audit makes of pip-audit's reports, which call versions safe that nobody could look up."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.tools import ROOT

LOOKED_UP: dict[str, Any] = {"name": "numpy", "version": "2.4.6", "vulns": []}
SKIPPED: dict[str, Any] = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited"}
HOLE: dict[str, Any] = {"id": "PYSEC-2026-1", "fix_versions": ["2.5.0"], "aliases": [], "description": "bad"}


@pytest.fixture(scope="module")
def dev() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev_of_checkout", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judged(dev: ModuleType, *dependencies: dict[str, Any]) -> tuple[int, str]:
    found: tuple[int, str] = dev.judged(json.dumps({"dependencies": dependencies, "fixes": []}), service="pypi")
    return found


def test_all_looked_up_and_safe(dev: ModuleType) -> None:
    assert judged(dev, LOOKED_UP) == (0, "1 of 1 pinned versions were looked up at pypi: no known vulnerabilities.")


def test_a_hole_is_named_with_the_version_that_mends_it(dev: ModuleType) -> None:
    code, told = judged(dev, LOOKED_UP | {"vulns": [HOLE]}, SKIPPED)
    assert code == 1
    assert told.splitlines()[0] == "numpy 2.4.6: PYSEC-2026-1, fixed in 2.5.0"
    assert "NOT AUDITED" in told


def test_a_hole_without_a_remedy_is_named_too(dev: ModuleType) -> None:
    code, told = judged(dev, LOOKED_UP | {"vulns": [HOLE | {"fix_versions": []}]})
    assert (code, "fixed in no version" in told) == (1, True)


@pytest.mark.parametrize("dependencies", [(SKIPPED,), (LOOKED_UP, SKIPPED), ()])
def test_what_nobody_looked_up_is_not_called_safe(dev: ModuleType, dependencies: tuple[dict[str, Any], ...]) -> None:
    code, told = judged(dev, *dependencies)
    assert code == dev.NOT_AUDITED
    assert "NOT AUDITED" in told
    assert ("torch" in told) == (LOOKED_UP in dependencies)


@pytest.mark.parametrize("report", ["", "Traceback", "{}", "[]", "null"])
def test_no_report_is_no_audit(dev: ModuleType, report: str) -> None:
    code, told = dev.judged(report, service="osv")
    assert code == dev.NOT_AUDITED
    assert told == "NOT AUDITED: osv cannot be asked from here."


@pytest.mark.parametrize(("audit", "test", "ended"), [(0, 0, 0), (3, 0, 0), (1, 0, 1), (0, 1, 1), (3, 1, 1)])
def test_ci_asks_and_goes_on_only_where_nobody_could_be_asked(
    tmp_path: Path, audit: int, test: int, ended: int
) -> None:
    stand_ins = {
        "python3": f'case "$2" in audit) echo "asked"; exit {audit};; test) exit {test};; esac',
        "apt-get": "exit 0",
    }
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", ROOT / ".ci" / "run"], env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (ended, "asked\n")
