"""Writes the OpenAPI description to deploy/openapi.json: ``python3 dev.py openapi``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from api.http.app import create_app
from api.service.context import open_service
from api.settings import Settings

FILE = Path(__file__).resolve().parents[3] / "deploy" / "openapi.json"


def description() -> dict[str, Any]:
    """Return what ``/openapi.json`` answers."""
    with tempfile.TemporaryDirectory() as folder, open_service(Settings(data_dir=Path(folder))) as service:
        return create_app(service).openapi()


def rendered(described: dict[str, Any]) -> str:
    """Return a description as the file holds it: sorted, so that a change is where it is."""
    return json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(rendered(description()), encoding="utf-8")
    print(f"{FILE}: {FILE.stat().st_size} bytes")
