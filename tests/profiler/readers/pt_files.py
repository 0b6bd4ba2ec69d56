"""Archives like those of ``torch.save``, put together byte by byte so that they can be wrong in every place."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ONE_INT32 = b"\x01\0\0\0"


def instruction_global(name: str) -> bytes:
    """Return the pickle instruction that asks for ``"module name"``."""
    module, attribute = name.split(" ")
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def number(value: int) -> bytes:
    if 0 <= value < 2**31:
        return b"J" + value.to_bytes(4, "little")
    encoded = pickle.encode_long(value)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def tuple_of(items: Sequence[bytes]) -> bytes:
    return b"(" + b"".join(items) + b"t"


def tensor(
    *,
    shape: Sequence[int] = (2, 2),
    strides: Sequence[int] = (2, 1),
    offset: int = 0,
    member: str = "0",
    elements: int = 4,
    storage: str = "torch IntStorage",
    device: str = "cpu",
) -> bytes:
    """Return the pickle of a tensor over a storage that it says has so many elements."""
    storage_id = tuple_of([text("storage"), instruction_global(storage), text(member), text(device), number(elements)])
    arguments = [
        storage_id + b"Q",
        number(offset),
        tuple_of([number(size) for size in shape]),
        tuple_of([number(stride) for stride in strides]),
        b"\x89",
        instruction_global("collections OrderedDict") + b")R",
    ]
    return instruction_global("torch._utils _rebuild_tensor_v2") + tuple_of(arguments) + b"R"


def write_archive(
    path: Path,
    value: bytes,
    *,
    protocol: int = 2,
    storages: Mapping[str, bytes] | None = None,
    more: Mapping[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
    root: str = "archive",
) -> Path:
    """Write an archive around the pickle of one value."""
    members = {
        f"{root}/data.pkl": b"\x80" + bytes([protocol]) + value + b".",
        f"{root}/byteorder": b"little",
        **{f"{root}/data/{name}": content for name, content in (storages or {"0": ONE_INT32 * 4}).items()},
        f"{root}/version": b"3\n",
        **(more or {}),
    }
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path
