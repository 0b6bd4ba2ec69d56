"""The REST API is what deploy/openapi.json says: who changes it, does so knowingly."""

from __future__ import annotations

import difflib
import json

from tests.api.http.described import FILE, description, rendered


def test_the_api_is_the_one_that_is_written_down() -> None:
    written, now = FILE.read_text(encoding="utf-8"), rendered(description())
    changed = list(
        difflib.unified_diff(written.splitlines(), now.splitlines(), "deploy/openapi.json", "now", lineterm="")
    )
    assert not changed, (
        "The API has changed. If that is meant: python3 dev.py openapi writes deploy/openapi.json anew; say it in "
        "CHANGELOG.md.\n" + "\n".join(changed[:60])
    )


def test_a_change_would_be_seen() -> None:
    described = json.loads(rendered(description()))
    described["paths"]["/v1/jobs"]["get"]["parameters"].pop()
    assert rendered(described) != FILE.read_text(encoding="utf-8")
