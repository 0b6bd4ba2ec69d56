"""Engines' keys by reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.errors import BadSecretReference, SecretMissing
from api.service.secret_references import LONGEST_SECRET, checked_reference, follow


def test_a_variable_and_a_file_are_followed(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-the-file\n")
    assert follow("env:KEY", environment={"KEY": "from-the-variable"}) == "from-the-variable"
    assert follow(f"file:{file}") == "from-the-file"
    assert follow(None) is None


def test_what_is_not_there_is_named_without_its_content(tmp_path: Path) -> None:
    large, binary, empty = tmp_path / "large", tmp_path / "binary", tmp_path / "empty"
    large.write_text("s" * (LONGEST_SECRET + 1))
    binary.write_bytes(b"\xff\xfe secret")
    empty.write_text("\n")
    for reference in ("env:KEY", *(f"file:{path}" for path in (large, binary, empty, tmp_path, tmp_path / "none"))):
        with pytest.raises(SecretMissing) as missing:
            follow(reference, environment={"KEY": ""})
        assert "secret" not in missing.value.detail
        assert "sss" not in missing.value.detail


@pytest.mark.parametrize("reference", ["", "secret", "env:", "env:1", "file:relative", "file:", "http://h", "ENV:KEY"])
def test_anything_else_is_refused(reference: str) -> None:
    with pytest.raises(BadSecretReference):
        checked_reference(reference)
