"""Reads the failing inputs under ``tests/cases``: their files, parameters and right numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "cases"


@dataclass(frozen=True)
class Case:
    """One case: its folder, and ``case.json``."""

    folder: Path
    content: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        return self.content["params"]

    @property
    def error_code(self) -> str:
        return self.content["expect"]["error_code"]

    @property
    def oracle(self) -> dict[str, Any]:
        return self.content["expect"]["oracle"]

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


def case(name: str) -> Case:
    folder = FOLDER / name
    return Case(folder, json.loads((folder / "case.json").read_text()))
