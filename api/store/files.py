"""Files named by the SHA-256 of their content: written whole or not at all, never changed."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from api.errors import BadPath, StoredFileLost
from profiler.errors import OutputNotWritable
from profiler.files import reason

SHA256 = re.compile(r"[0-9a-f]{64}")
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=,-]{0,199}")
PIECE_BYTES = 2**20
UNFINISHED_S = 24 * 3600.0
"""Files that a process which died was still writing are removed after so long."""


@dataclass(frozen=True)
class StoredFile:
    """A file that is on disk, whole."""

    sha256: str
    size_bytes: int


class Incoming:
    """A file that is being written; see :meth:`FileStore.incoming`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.size_bytes += len(piece)

    @property
    def stored(self) -> StoredFile:
        return StoredFile(self._digest.hexdigest(), self.size_bytes)


class FileStore:
    """Files in a folder: ``files/<first two digits>/<sha256>``, and ``incoming/`` for those being written.

    Equal contents are one file. Names come from contents alone, so no text of a request ever becomes a path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._incoming = folder / "incoming"

    @contextmanager
    def incoming(self) -> Iterator[Incoming]:
        """Give a file to write to; it is stored when the block ends, and leaves nothing when it raises.

        Raises
        ------
        OutputNotWritable
            The disk is full, or the folder may not be written.
        """
        temporary = self._incoming / f"{secrets.token_hex(16)}.tmp"
        try:
            self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
            with temporary.open("xb") as file:
                incoming = Incoming(file)
                yield incoming
                file.flush()
                os.fsync(file.fileno())
            target = self._target(incoming.stored.sha256)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.replace(target)
            for folder in (target.parent, target.parent.parent):
                _flush_folder(folder)
        except OSError as error:
            raise OutputNotWritable(f"{self.folder} cannot be written: {reason(error)}.") from error
        finally:
            with suppress(OSError):
                temporary.unlink()

    def put_bytes(self, content: bytes) -> StoredFile:
        """Store a content."""
        with self.incoming() as file:
            file.write(content)
        return file.stored

    def put_file(self, path: Path) -> StoredFile:
        """Store a copy of a file."""
        with self.incoming() as file, path.open("rb") as source:
            while piece := source.read(PIECE_BYTES):
                file.write(piece)
        return file.stored

    def path(self, sha256: str) -> Path:
        """Return where a file is.

        Raises
        ------
        StoredFileLost
            It is not there.
        """
        target = self._target(sha256)
        if not target.is_file():
            raise StoredFileLost(
                f"the stored file {sha256[:12]} is missing from {self.folder}: restore it from a backup."
            )
        return target

    def read(self, sha256: str) -> bytes:
        """Return a file's content, checked against its name.

        Raises
        ------
        StoredFileLost
            It is not there, or not what was stored.
        """
        content = self.path(sha256).read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise StoredFileLost(
                f"the stored file {sha256[:12]} in {self.folder} has changed: restore it from a backup."
            )
        return content

    def require_whole(self, sha256: str) -> Path:
        """Return where a file is, after reading it all; for files too large for :meth:`read`."""
        path = self.path(sha256)
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise self._lost(sha256, "has changed")
        return path

    def remove(self, sha256: str) -> None:
        """Remove a file; that it is gone already is fine."""
        self._target(sha256).unlink(missing_ok=True)

    def stored(self) -> Iterator[tuple[str, float]]:
        """Yield the name and time of every stored file."""
        for path in (self.folder / "files").glob("??/*"):
            if SHA256.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    yield path.name, path.stat().st_mtime

    def remove_unfinished(self, *, older_than_s: float = UNFINISHED_S) -> int:
        """Remove what processes that died were writing; return how many files."""
        removed = 0
        for path in self._incoming.glob("*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > older_than_s:
                    path.unlink()
                    removed += 1
        return removed

    def _lost(self, sha256: str, what: str) -> StoredFileLost:
        return StoredFileLost(f"the stored file {sha256[:12]} of {self.folder} {what}: restore it from a backup.")

    def _target(self, sha256: str) -> Path:
        if not SHA256.fullmatch(sha256):
            raise BadPath(f"{sha256[:80]!r} is not the SHA-256 of a stored file.")
        return self.folder / "files" / sha256[:2] / sha256


def plain_name(name: str) -> str:
    """Return a file's name as it is, when it is one name without folders.

    Raises
    ------
    BadPath
        It has separators, is hidden, or has characters other than letters, digits and ``. _ + @ = , -``.
    """
    if not PLAIN_NAME.fullmatch(name):
        raise BadPath(
            f"{name[:80]!r} is no plain file name: 1 to 200 letters, digits and . _ + @ = , - beginning with a letter "
            "or digit, without folders."
        )
    return name


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
