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


@pytest.mark.parametrize(
    "reference",
    [
        "env:MOEPLAN_DATABASE_URL", "env:MOEPLAN_ADMIN_API_KEY", "env:moeplan_api_key",
        "file:/run/secrets/moeplan_database_url", "file:/run/secrets/../secrets/moeplan_admin_api_key",
    ],
)  # fmt: skip
def test_the_services_own_secrets_are_sent_to_no_engine(reference: str) -> None:
    with pytest.raises(BadSecretReference, match="of moeplan itself"):
        checked_reference(reference)


@pytest.mark.parametrize("reference", ["env:MOEPLAN_ENGINE_KEY", "file:/run/secrets/engine_key"])
def test_engines_keys_beside_them_are(reference: str) -> None:
    assert checked_reference(reference) == reference


@pytest.mark.parametrize("content", ["root:x:0:0::/root:/bin/sh\nother:x", "A=1\0B=2", "two words", "schl\u00fcssel"])
def test_files_that_hold_something_else_are_not_sent(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    for reference, environment in ((f"file:{file}", {}), ("env:KEY", {"KEY": content})):
        with pytest.raises(SecretMissing, match="holds no key") as refused:
            follow(reference, environment=environment)
        assert content not in refused.value.detail
