"""Stored files: whole or absent, named by content, never by text of a request."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from api.errors import BadPath, StoredFileLost
from api.store.files import FileStore, plain_name
from profiler.errors import OutputNotWritable
from tests.case_files import case_json


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "data")


def everything_in(store: FileStore) -> list[Path]:
    return [path for path in store.folder.rglob("*") if path.is_file()]


def test_equal_contents_are_one_file(store: FileStore) -> None:
    first, second = store.put_bytes(b"routed"), store.put_bytes(b"routed")
    assert first == second
    assert first.sha256 == hashlib.sha256(b"routed").hexdigest()
    assert len(everything_in(store)) == 1
    assert store.read(first.sha256) == b"routed"


def test_a_file_whose_writing_fails_is_not_there(store: FileStore) -> None:
    def write_half() -> None:
        with store.incoming() as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert everything_in(store) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputNotWritable, match="no space left"):
        store.put_bytes(b"much")
    assert everything_in(store) == []


def test_content_is_on_disk_before_it_has_its_name(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bool] = []
    flush = os.fsync
    name = hashlib.sha256(b"kept").hexdigest()

    def watched(descriptor: int) -> None:
        flushed.append((store.folder / "files" / name[:2] / name).exists())
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    store.put_bytes(b"kept")
    assert flushed == [False, True, True]  # the content, then the folders that name it


@pytest.mark.parametrize("change", [b"xouted", b"routed and more", b""])
def test_a_changed_file_is_not_given_out(store: FileStore, change: bytes) -> None:
    stored = store.put_bytes(b"routed")
    store.path(stored.sha256).write_bytes(change)
    with pytest.raises(StoredFileLost, match="has changed"):
        store.read(stored.sha256)
    with pytest.raises(StoredFileLost, match="has changed"):
        store.require_whole(stored.sha256)


def test_a_missing_file_is_named(store: FileStore) -> None:
    with pytest.raises(StoredFileLost, match="is missing"):
        store.read("ab" * 32)


@given(some.text(max_size=80))
def test_no_text_but_a_sha256_is_a_path(name: str) -> None:
    with pytest.raises((BadPath, StoredFileLost)):
        FileStore(Path("/nonexistent/moeplan")).path(name)


def test_path_like_names_are_refused() -> None:
    for name in (
        *case_json("S03", "names.json"),
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "/etc/passwd",
        ".hidden",
        "a\0b",
        "x" * 201,
        "ü.pt",
        "a\n",
    ):
        with pytest.raises(BadPath):
            plain_name(name)


@pytest.mark.parametrize(
    "name", ["expert_distribution_recorder_1795978390.596403_0.pt", "counts.json", "rank0.safetensors"]
)
def test_names_that_engines_give_are_kept(name: str) -> None:
    assert plain_name(name) == name


def test_what_a_dead_process_was_writing_is_removed_later(store: FileStore) -> None:
    store.put_bytes(b"kept")
    (store.folder / "incoming" / "dead.tmp").write_bytes(b"half")
    assert store.remove_unfinished() == 0
    assert store.remove_unfinished(older_than_s=-1) == 1
    assert len(everything_in(store)) == 1
