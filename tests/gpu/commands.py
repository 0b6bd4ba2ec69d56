"""moeplan's commands, run as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.gpu.machine import PROJECT, Machine

LIMIT_S = 120.0


def moeplan(machine: Machine, *words: object, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run ``moeplan WORDS --json`` and return its object.

    Raises
    ------
    RuntimeError
        The command failed; with what it said.
    """
    command = [sys.executable, "-c", "from api.cli import main; main()", *map(str, words), "--json"]
    ended = subprocess.run(
        command, cwd=PROJECT, env=machine.tool_variables(), capture_output=True, text=True, timeout=limit_s, check=False
    )
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip()[-2000:]
        raise RuntimeError(f"moeplan {' '.join(map(str, words))} ended with {ended.returncode}: {said}")
    return dict(json.loads(ended.stdout))
