"""The failing inputs of tests/cases: what each folder says must happen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"


def case_folder(name: str) -> Path:
    """Return the folder of a case by the first part of its name, like ``U01``."""
    (folder,) = CASES.glob(f"{name}_*")
    return folder


def case(name: str) -> dict[str, Any]:
    """Return a case's ``case.json``."""
    parsed: dict[str, Any] = json.loads((case_folder(name) / "case.json").read_text(encoding="utf-8"))
    return parsed


def case_json(name: str, file: str) -> Any:
    """Return one of a case's files, parsed."""
    return json.loads((case_folder(name) / file).read_text(encoding="utf-8"))
