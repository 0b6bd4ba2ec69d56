"""Reading members of ``.npz`` archives without trusting them."""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from profiler.errors import ArchiveInflates, BadCountShape, BadCountType, UnreadableDump, UnsafePickle

MAX_INFLATED_BYTES = 2**30
"""An archive may unpack to this much however small it is."""
MAX_INFLATION = 100
"""Beyond that, an archive may unpack to this many times its own size."""
MAX_MEMBERS = 1000

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
)
"""What zip, zlib and NumPy raise over files that are cut or damaged."""


@dataclass(frozen=True)
class Member:
    """Header of one array.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
        Never a type that holds Python objects.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class NpzArchive:
    """The arrays of an ``.npz`` file: headers are read and checked first, data on demand, pickles never.

    Parameters
    ----------
    path : Path

    Raises
    ------
    UnreadableDump
        No zip archive, damaged, or a header that contradicts the size of its data.
    UnsafePickle
        An array of Python objects.
    ArchiveInflates
        Unpacks to more than 1 GiB and more than 100 times its size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._archive() as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            if len(infos) > MAX_MEMBERS:
                raise UnreadableDump(f"{path.name} has {len(infos)} arrays; up to {MAX_MEMBERS} are read.")
            unpacked = sum(info.file_size for info in infos)
            packed = path.stat().st_size
            if unpacked > MAX_INFLATED_BYTES and unpacked > MAX_INFLATION * packed:
                raise ArchiveInflates(
                    f"{path.name} has {packed} bytes and unpacks to {unpacked}; at most {MAX_INFLATION} times its "
                    "size is unpacked."
                )
            names = [info.filename.removesuffix(".npy") for info in infos]
            if len(set(names)) < len(names):
                raise UnreadableDump(f"{path.name} holds two arrays of the same name.")
            self.members = {name: self._header(archive, info) for name, info in zip(names, infos, strict=True)}

    def read(self, name: str) -> npt.NDArray[Any]:
        """Read one array whole, in the byte order of this machine."""
        with self._archive() as archive, archive.open(f"{name}.npy") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # reaching the end makes zipfile compare the checksum
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def read_whole_numbers(self, name: str, *, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Read an array of integers of exactly this shape."""
        member = self.members[name]
        if member.dtype.kind not in "iu":
            raise BadCountType(f"{name} of {self._path.name} holds {member.dtype} values; whole numbers are needed.")
        if member.shape != shape:
            raise BadCountShape(
                f"{name} of {self._path.name} has shape {list(member.shape)}; {list(shape)} is needed, one per value."
            )
        values = self.read(name)
        if member.dtype.kind == "u" and values.size and int(values.max()) > np.iinfo(np.int64).max:
            raise BadCountType(f"{name} of {self._path.name} holds values beyond 64 bits.")
        return values.astype(np.int64)

    def read_number(self, name: str) -> int:
        """Read a single integer, stored as a scalar or as an array of one."""
        shape = self.members[name].shape
        return int(self.read_whole_numbers(name, shape=shape if shape in ((), (1,)) else ()).reshape(-1)[0])

    def layer_labels(self, rows: int) -> list[int] | None:
        """Read ``layer_ids``, the label of each row, if it is there."""
        if "layer_ids" not in self.members:
            return None
        return [int(label) for label in self.read_whole_numbers("layer_ids", shape=(rows,))]

    def summary(self) -> dict[str, str]:
        """Return type and shape of every array, for people."""
        return {name: f"{member.dtype} {list(member.shape)}" for name, member in self.members.items()}

    def read_texts(self, name: str, *, count: int | None = None) -> tuple[str, ...]:
        """Read an array of strings, of ``count`` entries where given."""
        member = self.members[name]
        if member.dtype.kind not in "US" or len(member.shape) != 1:
            raise BadCountType(f"{name} of {self._path.name} must be a list of strings.")
        if count is not None and member.shape[0] != count:
            raise BadCountShape(f"{name} of {self._path.name} has {member.shape[0]} entries; {count} are needed.")
        values = self.read(name).tolist()
        return tuple(value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values)

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        """Open the archive; whatever zip, zlib and NumPy find wrong with it is one error to the caller."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield archive
        except _DAMAGE as error:
            raise UnreadableDump(f"{self._path.name} is truncated or damaged: {error}.") from error

    def _header(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
        with archive.open(info) as file:
            shape, dtype = _read_header(file)
            header_bytes = file.tell()
        where = f"{info.filename.removesuffix('.npy')} of {self._path.name}"
        if dtype.hasobject:
            raise UnsafePickle(
                f"{where} holds Python objects, which are stored as pickles; only numbers and text are read."
            )
        stated, held = math.prod(shape) * dtype.itemsize, info.file_size - header_bytes
        if stated != held or any(size < 0 for size in shape):
            raise UnreadableDump(f"{where} states {stated} bytes of data and holds {held}.")
        return Member(shape=shape, dtype=dtype)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Parse the header of an array; NumPy evaluates it as a Python literal, so damage shows in many ways."""
    version = np.lib.format.read_magic(file)
    read = _HEADER_READERS.get(version)
    if read is None:
        raise ValueError(f"array format {version} is unknown")
    try:
        shape, _, dtype = read(file)
    except (SyntaxError, TokenError, TypeError, KeyError, AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"an array's header cannot be parsed ({type(error).__name__})") from error
    if dtype.itemsize == 0:
        raise ValueError(f"an array of {dtype} takes no bytes, so its size cannot be trusted")
    return shape, dtype


_HEADER_READERS: Mapping[tuple[int, int], Any] = MappingProxyType(
    {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
)
