"""Files that are either whole or absent, and hashes of files."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from profiler.errors import InputNotFound, OutputNotWritable, UnreadableDump

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Full, over its quota, read-only, or a file larger than may be."""


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Give a temporary file beside ``path``; it takes the place of ``path`` when the block ends without an error.

    A reader of ``path`` sees the old content or the new one, never a part, also after a crash or a full disk.

    Parameters
    ----------
    path : Path
        A file that exists or not, in a folder that exists. A symbolic link is followed.

    Yields
    ------
    Path
        An empty file in the same folder, to be written and closed inside the block.

    Raises
    ------
    OutputNotWritable
        The folder is missing, the target is no regular file, or the system refuses to write.
    """
    target = _writable_target(path)
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.tmp")
    try:
        # Not tempfile: the new file gets the permissions that the caller's umask gives any file.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise OutputNotWritable(f"{path} cannot be written: {reason(error)}.") from error
    try:
        yield temporary
        _flush_to_disk(temporary)
        temporary.replace(target)
        _flush_to_disk(target.parent)
    except OSError as error:
        raise OutputNotWritable(f"{path} cannot be written: {reason(error)}.") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def require_writable(path: Path) -> None:
    """Raise :class:`OutputNotWritable` for what :func:`atomic_output` would refuse, before long work is done for it."""
    folder = _writable_target(path).parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputNotWritable(f"{path} cannot be written: the folder {folder} may not be written.")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file, or leave what was there. Raises :class:`OutputNotWritable`."""
    with atomic_output(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write a whole UTF-8 text file, or leave what was there. Raises :class:`OutputNotWritable`."""
    write_bytes(path, unicode_only(content).encode())


def unicode_only(value: Any) -> Any:
    """Return a JSON value whose texts are Unicode: bytes of file names that are none are written as escapes.

    Python keeps such bytes as lone surrogates, which UTF-8, and other readers of JSON, do not have.
    """
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {unicode_only(key): unicode_only(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (int, float)):
        return [unicode_only(one) for one in value]
    return value


def require_regular_file(path: Path) -> Path:
    """Return ``path``, or say why it cannot be read.

    Raises
    ------
    InputNotFound
        Nothing is there.
    UnreadableDump
        It is a pipe, a device or a folder, or this user may not read it.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise UnreadableDump(f"{path} is no regular file.")
        with path.open("rb"):
            return path
    except FileNotFoundError as error:
        raise InputNotFound(f"{path} does not exist.") from error
    except OSError as error:
        raise UnreadableDump(f"{path} cannot be read: {reason(error)}.") from error


def content_hash(paths: Sequence[Path]) -> str:
    """Return SHA-256 in hex over one file's bytes, or over the names and hashes of several.

    Several files are taken in the order of their names, so the order in which they were given does not matter.
    """
    if len(paths) == 1:
        with paths[0].open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    whole = hashlib.sha256()
    for path in sorted(paths, key=lambda path: (path.name, str(path))):
        with path.open("rb") as file:
            whole.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def _writable_target(path: Path) -> Path:
    try:
        target = path.resolve()
        if not target.parent.is_dir():
            raise OutputNotWritable(f"{path} cannot be written: the folder {target.parent} does not exist.")
        if target.exists() and not target.is_file():
            raise OutputNotWritable(f"{path} cannot be written: it is a folder or device, not a file.")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise OutputNotWritable(f"{path} cannot be written: {error}.") from error
    return target


def _flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_full(error: OSError) -> OutputNotWritable | None:
    """Return what an error of the system says of a disk that takes nothing more; None where it says something else."""
    if error.errno not in DISK_ERRORS:
        return None
    place = f"{error.filename} cannot be written" if error.filename else "a temporary file cannot be written"
    return OutputNotWritable(f"{place}: {reason(error)}.")


def reason(error: Exception) -> str:
    """Return what the system said, without the path, which messages name themselves."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said[:1].lower() + said[1:]
