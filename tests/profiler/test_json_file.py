"""JSON is read in one way only, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.errors import BadJson, InputNotFound, UnreadableDump
from profiler.json_file import read_json

REFUSED = {
    "nothing": (b"", "the file is empty"),
    "blanks": (b" \n\t", "the file is empty"),
    "cut off": (b'{"a": [1, 2', "line 1"),
    "trailing text": (b"{} {}", "Extra data at line 1, column 4"),
    "single quotes": (b"{'a': 1}", "is not JSON"),
    "key twice": (b'{"a": 1, "b": 2, "a": 1}', "the key 'a' is there twice"),
    "key twice, deep down": (b'[{"x": {"a": 1, "a": 2}}]', "the key 'a' is there twice"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "infinity": (b"[-Infinity]", "-Infinity"),
    "float out of range": (b"[1e999]", "1e999"),
    "integer of 5000 digits": (b"[" + b"9" * 5000 + b"]", "cannot be read"),
    "nesting": (b"[" * 200_000, "nested too deeply"),
    "zip": (b"PK\x03\x04\xff\xfe\x00", "not text in UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "not text in UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_readers_could_understand_differently_is_refused(tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    path = tmp_path / "layout.json"
    path.write_bytes(content)
    with pytest.raises(BadJson) as caught:
        read_json(path)
    assert message in caught.value.detail
    assert "layout.json" in caught.value.detail
    assert len(caught.value.detail) < 200


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_plain_json_is_read_with_and_without_a_byte_order_mark(tmp_path: Path, mark: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(mark + b'{"a": [1, 2.5, true, null, "x"]}')
    assert read_json(path) == {"a": [1, 2.5, True, None, "x"]}


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" + "1," * 600_000 + "1]")
    assert len(read_json(path)) == 600_001
    with pytest.raises(BadJson, match="larger than 1 MiB"):
        read_json(path, max_bytes=2**20)


def test_missing_files_folders_and_pipes(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="does not exist"):
        read_json(tmp_path / "absent.json")
    with pytest.raises(UnreadableDump):
        read_json(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UnreadableDump):
        read_json(tmp_path / "pipe.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@settings(deadline=None)
@given(VALUES)
def test_whatever_json_writes_comes_back(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    assert read_json(path) == value
