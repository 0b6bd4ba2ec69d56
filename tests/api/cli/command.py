"""Runs moeplan commands inside the test process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed

    @property
    def warning_codes(self) -> set[str]:
        return {warning["code"] for warning in self.json["warnings"]}


class Moeplan:
    """The command, with the output of each call captured."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        self.capsys.readouterr()
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
        printed = self.capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    def refused(self, *arguments: object, code: str, exit_code: int = 2) -> str:
        """Run a command that must be refused; return its one sentence."""
        ran = self(*arguments)
        assert ran.code == exit_code, f"exit {ran.code}: {ran.out}{ran.err}"
        line, *remedies = ran.err.strip().splitlines()
        assert line.startswith(f"{code}: "), ran.err
        assert line.endswith("."), line
        assert all(remedy.startswith("  ") for remedy in remedies), ran.err
        assert "Traceback" not in ran.err
        return line


def write_json(path: Path, value: object) -> Path:
    """Write a value as JSON and return the path."""
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
