"""The only door to ``.pt`` files: tensors and plain containers come out, and no code of the file ever runs.

A ``.pt`` file of ``torch.save`` is a zip archive of stored (uncompressed) members: a pickle that describes the object,
and one member per tensor storage. The archive and the pickle are checked here before torch sees the file, torch loads
it with ``weights_only=True``, and the tensors are checked again afterwards. The storages are mapped, not read, so an
opened file costs memory for its pickle only and the system pages the numbers in and out.
"""

from __future__ import annotations

import struct
import warnings
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from profiler.errors import ArchiveInflates, UnreadableDump, UnsafePickle
from profiler.files import require_regular_file
from profiler.readers.pt_pickle import check_pickle, find_unknown_global
from profiler.readers.pt_tensors import plain_values

MAX_MEMBERS = 500_000
"""A detailed recording has two storages per engine step: a quarter of a million steps in one file."""
MAX_PICKLE_BYTES = 512 * 2**20
"""The pickle becomes Python objects of about ten times its size; token lists of this size are 50 million tokens."""

_ZIP_START = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_READ_BYTES = 4 * 2**20


def load_pt(path: Path) -> Any:
    """Load what ``torch.save`` wrote, as NumPy arrays and plain containers.

    Parameters
    ----------
    path : Path

    Returns
    -------
    object
        Built of dict, list, tuple, str, int, float, bool, None and read-only arrays, which stay mapped to the file:
        the file must not be cut short while they are in use.

    Raises
    ------
    InputNotFound
        The file does not exist.
    UnreadableDump
        No regular file, empty, truncated, damaged, not written by ``torch.save``, or its tensors contradict their
        storages or are of a kind that is not read (sparse, quantised, complex, ...).
    ArchiveInflates
        The archive unpacks to more than itself.
    UnsafePickle
        The pickle asks for anything but tensors and plain containers.
    """
    require_regular_file(path)
    if path.stat().st_size == 0:
        raise UnreadableDump(f"{path.name} is empty (0 bytes): the dump was not written, or not yet.")
    with path.open("rb") as file:
        if file.read(len(_ZIP_START)) != _ZIP_START:
            _refuse_bare_pickle(path, file)
        members = _members(path, file)
        _check_contents(path, file, members)
        check_pickle(_read(file, members.pickle), name=path.name)
    storage_bytes = Counter(member.size_bytes for member in members.storages)
    return plain_values(_torch_load(path), storage_bytes=storage_bytes, name=path.name)


def _torch_load(path: Path) -> Any:
    import pickle

    import torch  # late: importing it takes seconds and hundreds of megabytes

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch talks about its own classes when a damaged pickle leads it there
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        # The scan let it pass, so torch's own list is stricter here: it is still a request for code.
        raise UnsafePickle(f"{path.name} is refused by torch's safe loader: {_first_sentence(error)}.") from error
    except Exception as error:  # a damaged file makes torch raise nearly anything
        raise UnreadableDump(f"{path.name} is damaged: {_first_sentence(error)}.") from error


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0].rstrip(".")[:200]


@dataclass(frozen=True)
class _Member:
    """Where a member's bytes lie in the file."""

    name: str
    start: int
    size_bytes: int
    crc: int


@dataclass(frozen=True)
class _Members:
    pickle: _Member
    storages: tuple[_Member, ...]
    all: tuple[_Member, ...]


def _refuse_bare_pickle(path: Path, file: IO[bytes]) -> None:
    """Say what a file is that is no zip archive; such files are never loaded."""
    file.seek(0)
    unknown = find_unknown_global(file)
    if unknown is not None:
        raise UnsafePickle(
            f"{path.name} is a pickle that asks for {unknown}; only tensors and plain containers are read."
        )
    file.seek(0)
    if file.read(1) == b"\x80":
        raise UnreadableDump(
            f"{path.name} is a bare pickle; the zip format that torch.save writes since version 1.6 is needed."
        )
    raise UnreadableDump(f"{path.name} is not a file of torch.save: it is damaged or something else.")


def _members(path: Path, file: IO[bytes]) -> _Members:
    """Read and check the archive's directory, so that nothing is left to differing interpretations."""
    infos = _directory(path, file)
    total_bytes = sum(info.file_size for info in infos)
    file_bytes = path.stat().st_size
    if total_bytes > file_bytes:
        raise ArchiveInflates(
            f"{path.name} has {file_bytes} bytes and unpacks to {total_bytes}; torch.save stores members as they are."
        )
    packed = next((info.filename for info in infos if info.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise UnreadableDump(f"{path.name} was compressed again ({packed}); the file as torch.save wrote it is needed.")
    _check_names(path, [info.filename for info in infos])
    members = tuple(_locate(path, file, info) for info in infos)
    _check_extents(path, members, file_bytes)
    pickles = [member for member in members if member.name.partition("/")[2] == "data.pkl"]
    if not pickles:
        raise UnreadableDump(f"{path.name} is a zip archive without data.pkl: it was not written by torch.save.")
    if pickles[0].size_bytes > MAX_PICKLE_BYTES:
        raise UnreadableDump(
            f"{path.name} has a pickle of {pickles[0].size_bytes} bytes; up to {MAX_PICKLE_BYTES} are read: dump more "
            "often."
        )
    storages = tuple(member for member in members if member.name.partition("/")[2].startswith("data/"))
    return _Members(pickle=pickles[0], storages=storages, all=members)


def _directory(path: Path, file: IO[bytes]) -> list[zipfile.ZipInfo]:
    file.seek(max(0, path.stat().st_size - _ZIP_END_BYTES))
    if not file.read().startswith(_ZIP_END):  # with a comment behind it, readers differ about where the directory is
        raise UnreadableDump(f"{path.name} is truncated or still being written: the archive's directory is not there.")
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, OSError, struct.error) as error:
        raise UnreadableDump(f"{path.name} is truncated or damaged: {_first_sentence(error)}.") from error
    if len(infos) > MAX_MEMBERS:
        raise UnreadableDump(f"{path.name} has {len(infos)} members; up to {MAX_MEMBERS} are read: dump more often.")
    if min((info.header_offset for info in infos), default=1) != 0:
        raise UnreadableDump(f"{path.name} does not begin with the first member of its archive.")
    return infos


def _check_names(path: Path, names: list[str]) -> None:
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1:
        raise UnreadableDump(f"{path.name} has {len(roots)} top folders; an archive of torch.save has one.")
    for name in names:
        parts = name.split("/")
        if len(parts) < 2 or "\\" in name or "\0" in name or any(part in ("", "..") for part in parts):
            raise UnreadableDump(f"{path.name} has a member of the name {name!r}; torch.save writes no such name.")
    # Lower case, because torch finds members without regard to case.
    if len({name.lower() for name in names}) < len(names):
        raise UnreadableDump(f"{path.name} has two members of one name.")


def _locate(path: Path, file: IO[bytes], info: zipfile.ZipInfo) -> _Member:
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_ZIP_START):
        raise UnreadableDump(f"{path.name} is damaged: member {info.filename} has no header.")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    return _Member(name=info.filename, start=start, size_bytes=info.file_size, crc=info.CRC)


def _check_extents(path: Path, members: tuple[_Member, ...], file_bytes: int) -> None:
    end, before = 0, ""
    for member in sorted(members, key=lambda member: member.start):
        if member.size_bytes and member.start < end:
            raise ArchiveInflates(f"{path.name} has members that share their bytes: {before} and {member.name}.")
        end, before = max(end, member.start + member.size_bytes), member.name
    if end > file_bytes:
        raise UnreadableDump(f"{path.name} is truncated: {before} goes on to byte {end} of {file_bytes}.")


def _check_contents(path: Path, file: IO[bytes], members: _Members) -> None:
    """Compare every member with its checksum; torch does not."""
    for member in members.all:
        if member.crc == 0:
            continue  # what torch.serialization.set_crc32_options(False) writes, and the checksum of nothing
        file.seek(member.start)
        crc, left = 0, member.size_bytes
        while left > 0 and (block := file.read(min(left, _READ_BYTES))):
            crc, left = zlib.crc32(block, crc), left - len(block)
        if crc != member.crc or left:
            raise UnreadableDump(f"{path.name} is damaged: the bytes of {member.name} do not match their checksum.")


def _read(file: IO[bytes], member: _Member) -> bytes:
    file.seek(member.start)
    return file.read(member.size_bytes)
