"""Stored files in an object store (S3 and what fsspec knows), with copies of those in use on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import fsspec

from api.errors import BadSetting, FilesUnreachable, StoredFileLost
from api.store.files import PIECE_BYTES, SHA256, FileStore, Incoming

COPY_KEPT_S = 24 * 3600.0
"""A copy that was not asked for so long is removed; the object stays."""

EXTRAS = {"s3": "moeplan[s3]"}
"""What to install for a kind of object store, where moeplan has an extra for it."""

TIMES = ("LastModified", "modified", "mtime", "created")
"""Where listings of different stores say when an object was made."""


class Objects(Protocol):
    """What is used of an fsspec file system."""

    def open(self, path: str, mode: str, **options: Any) -> Any: ...
    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, Any]]: ...
    def rm_file(self, path: str) -> None: ...


class ObjectFileStore(FileStore):
    """As :class:`FileStore`, where the objects are what is stored, and ``folder`` holds copies.

    An object has its name only once it is whole: an upload is committed, or thrown away. What a process that died was
    uploading stays invisible; a rule of the bucket for unfinished uploads removes it.

    Parameters
    ----------
    folder : Path
        Of this machine; made when it is needed.
    objects
        A file system of fsspec, without a cache of listings.
    prefix : str
        Bucket and folder in it.
    """

    def __init__(self, folder: Path, objects: Objects, prefix: str) -> None:
        super().__init__(folder)
        self._objects = objects
        self._prefix = prefix.rstrip("/")

    @contextmanager
    def incoming(self) -> Iterator[Incoming]:
        with super().incoming() as incoming:
            yield incoming
        self._send(incoming.stored.sha256)

    def path(self, sha256: str) -> Path:
        copy = self._target(sha256)
        try:
            os.utime(copy)
        except OSError:
            self._fetch(sha256)
        return copy

    def read(self, sha256: str) -> bytes:
        try:
            return super().read(sha256)
        except StoredFileLost:
            self._drop_copy(sha256)  # the copy is spoilt, or the object is gone; the second reading tells
            return super().read(sha256)

    def require_whole(self, sha256: str) -> Path:
        try:
            return super().require_whole(sha256)
        except StoredFileLost:
            self._drop_copy(sha256)
            return super().require_whole(sha256)

    def remove(self, sha256: str) -> None:
        self._drop_copy(sha256)
        with self._reached(), suppress(FileNotFoundError):
            self._objects.rm_file(self._object(sha256))

    def stored(self) -> Iterator[tuple[str, float]]:
        with self._reached():
            try:
                found = self._objects.find(f"{self._prefix}/files", detail=True)
            except FileNotFoundError:
                found = {}
        for path, about in found.items():
            name = path.rsplit("/", 1)[-1]
            if SHA256.fullmatch(name):
                yield name, _seconds(about)

    def remove_unfinished(self, **limits: float) -> int:
        return super().remove_unfinished(**limits) + self._remove_old_copies()

    def _send(self, sha256: str) -> None:
        with self._reached(), self._target(sha256).open("rb") as copy:
            upload = self._objects.open(self._object(sha256), "wb", autocommit=False)
            try:
                while piece := copy.read(PIECE_BYTES):
                    upload.write(piece)
                upload.close()
                upload.commit()
            except BaseException:
                upload.discard()
                raise

    def _fetch(self, sha256: str) -> None:
        with self._reached():
            try:
                source = self._objects.open(self._object(sha256), "rb")
            except FileNotFoundError:
                raise self._lost(sha256, "is missing") from None
        with source, super().incoming() as copy:
            while piece := self._piece(source):
                copy.write(piece)
        if copy.stored.sha256 != sha256:
            self._drop_copy(copy.stored.sha256)
            raise self._lost(sha256, "has changed")

    def _piece(self, source: Any) -> bytes:
        with self._reached():
            piece: bytes = source.read(PIECE_BYTES)
        return piece

    def _drop_copy(self, sha256: str) -> None:
        super().remove(sha256)

    def _remove_old_copies(self) -> int:
        old = [name for name, used_s in super().stored() if time.time() - used_s > COPY_KEPT_S]
        for name in old:
            self._drop_copy(name)
        return len(old)

    def _object(self, sha256: str) -> str:
        return f"{self._prefix}/files/{sha256[:2]}/{sha256}"

    def _lost(self, sha256: str, what: str) -> StoredFileLost:
        return StoredFileLost(f"the stored file {sha256[:12]} of {self._prefix} {what}: restore it from a backup.")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Let what a store's own client raises become one sentence; every one has errors of its own."""
        try:
            yield
        except StoredFileLost:
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise FilesUnreachable(f"the object store {self._prefix} cannot be used: {said.rstrip('.')}.") from error


def open_files(data_dir: Path, files_url: str | None) -> FileStore:
    """Return where files are stored: the data folder, another folder (``file://``), or an object store.

    Raises
    ------
    BadSetting
        What the object store needs is not installed.
    """
    if files_url is None:
        return FileStore(data_dir)
    if files_url.startswith("file://"):
        return FileStore(Path(files_url.removeprefix("file://")))
    scheme = files_url.partition("://")[0]
    try:
        objects, prefix = fsspec.core.url_to_fs(files_url, use_listings_cache=False)
    except ImportError:
        needed = EXTRAS.get(scheme, f"the fsspec client for {scheme}")
        raise BadSetting(f"the setting files_url: {scheme}:// needs {needed}, which is not installed.") from None
    return ObjectFileStore(data_dir / "copies", objects, prefix)


def _seconds(about: dict[str, Any]) -> float:
    for name in TIMES:
        at = about.get(name)
        if isinstance(at, datetime):
            return at.timestamp()
        if isinstance(at, (int, float)):
            return float(at)
    return time.time()  # of unknown age: as good as new, so that it is not removed
