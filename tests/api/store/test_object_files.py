"""Stored files in an object store: in memory, and on a real S3 server."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.errors import BadSetting, FilesUnreachable, StoredFileLost
from api.jobs.housekeeping import tidy_up
from api.settings import read_settings
from api.store import object_files
from api.store.files import FileStore
from api.store.object_files import ObjectFileStore, open_files
from tests.api.services import service_on
from tests.api.store.object_stores import memory_store, new_bucket, s3_server, s3_store


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectFileStore:
    if request.param == "memory":
        return memory_store(tmp_path)
    request.getfixturevalue("s3")
    return s3_store(tmp_path)


def forget_copies(store: ObjectFileStore) -> None:
    shutil.rmtree(store.folder, ignore_errors=True)


def objects_of(store: ObjectFileStore) -> Any:
    return store._objects


def test_what_is_stored_is_there_for_other_machines(store: ObjectFileStore, tmp_path: Path) -> None:
    content = b"routed" * 300_000
    stored = store.put_bytes(content)
    other = ObjectFileStore(tmp_path / "elsewhere", objects_of(store), store._prefix)
    assert other.read(stored.sha256) == content
    assert other.require_whole(stored.sha256).read_bytes() == content
    assert [name for name, _ in other.stored()] == [stored.sha256]
    ((_, made_s),) = other.stored()
    assert abs(time.time() - made_s) < 600


def test_equal_contents_are_one_object(store: ObjectFileStore) -> None:
    assert store.put_bytes(b"routed") == store.put_bytes(b"routed")
    assert len(list(store.stored())) == 1


def test_half_an_upload_is_never_visible(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = s3_store(tmp_path)  # fsspec's memory shows a file while it is written
    objects, seen = objects_of(store), []
    whole_open = objects.open

    def breaking(path: str, mode: str, **options: Any) -> Any:
        file = whole_open(path, mode, **options)
        if mode == "wb":

            def commit() -> None:
                seen.append(objects.exists(path))
                raise ConnectionResetError("the line broke")

            monkeypatch.setattr(file, "commit", commit, raising=False)
        return file

    monkeypatch.setattr(objects, "open", breaking)
    with pytest.raises(FilesUnreachable, match="the line broke"):
        store.put_bytes(b"half")
    assert seen == [False]
    assert list(store.stored()) == []


def test_a_process_that_dies_while_it_writes_leaves_no_object(store: ObjectFileStore) -> None:
    def write_half() -> None:
        with store.incoming() as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(store.stored()) == []


def test_a_spoilt_copy_is_fetched_again(store: ObjectFileStore) -> None:
    stored = store.put_bytes(b"routed")
    for spoilt in (b"xouted", b""):
        store.path(stored.sha256).write_bytes(spoilt)
        assert store.read(stored.sha256) == b"routed"
        store.path(stored.sha256).write_bytes(spoilt)
        assert store.require_whole(stored.sha256).read_bytes() == b"routed"


def test_a_changed_object_is_not_given_out(store: ObjectFileStore) -> None:
    stored = store.put_bytes(b"routed")
    with objects_of(store).open(store._object(stored.sha256), "wb") as file:
        file.write(b"xouted")
    forget_copies(store)
    for reading in (store.read, store.require_whole, store.path):
        with pytest.raises(StoredFileLost, match="has changed"):
            reading(stored.sha256)
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


def test_a_missing_object_is_named(store: ObjectFileStore) -> None:
    with pytest.raises(StoredFileLost, match="is missing"):
        store.read("ab" * 32)
    store.remove("ab" * 32)


def test_removing_takes_object_and_copy(store: ObjectFileStore) -> None:
    stored = store.put_bytes(b"routed")
    store.remove(stored.sha256)
    assert list(store.stored()) == []
    with pytest.raises(StoredFileLost):
        store.path(stored.sha256)


def test_copies_that_nobody_asks_for_are_removed(store: ObjectFileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = store.put_bytes(b"routed")
    assert store.remove_unfinished() == 0
    monkeypatch.setattr(object_files, "COPY_KEPT_S", -1.0)
    assert store.remove_unfinished() == 1
    assert store.read(stored.sha256) == b"routed"


def test_a_store_that_does_not_answer_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def open(self, path: str, mode: str, **options: Any) -> Any:
            raise ConnectionError("no route to host")

        find = rm_file = open

    store = ObjectFileStore(tmp_path, Broken(), "bucket/kept")  # type: ignore[arg-type]
    for action in (lambda: store.put_bytes(b"x"), lambda: store.read("ab" * 32)):
        with pytest.raises(FilesUnreachable, match=r"the object store bucket/kept cannot be used: no route to host\."):
            action()


def test_a_bucket_that_is_not_there_is_said(s3: str, tmp_path: Path) -> None:
    with pytest.raises(FilesUnreachable):
        open_files(tmp_path, "s3://no-such-bucket-here/kept").put_bytes(b"x")


def test_a_service_keeps_its_files_there(s3: str, database_url: str, tmp_path: Path) -> None:
    with service_on(database_url, tmp_path / "data", files_url=new_bucket()) as service:
        stored = service.files.put_bytes(b"nothing refers to it")
        tidy_up(service)
        assert [name for name, _ in service.files.stored()] == [stored.sha256]  # young: its row may be on its way
        tidy_up(service, young_s=-60.0)
        assert list(service.files.stored()) == []


def test_a_folder_by_url_is_a_folder(tmp_path: Path) -> None:
    store = open_files(tmp_path / "data", f"file://{tmp_path}/shared")
    stored = store.put_bytes(b"routed")
    assert type(store) is FileStore
    assert (tmp_path / "shared" / "files" / stored.sha256[:2] / stored.sha256).read_bytes() == b"routed"
    assert stored.sha256 == hashlib.sha256(b"routed").hexdigest()


@pytest.mark.parametrize(
    "url",
    ["bucket/folder", "s3://", "ftp://host/x", "s3://key:secret@bucket/x", "s3://b/x?a=1", "file://x", "memory://x"],
)
def test_urls_that_are_none_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadSetting, match="files_url") as refused:
        read_settings(files_url=url)
    assert "secret" not in refused.value.detail


def test_what_is_missing_for_a_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="gs:// needs"):
        open_files(tmp_path, "gs://bucket/x")
