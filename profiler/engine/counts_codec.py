"""Count arrays inside JSON: int64, little-endian, zlib-compressed, base64."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.engine.json_fields import ContractViolation, Fields

MAX_COUNTS = 2**27
"""Largest number of counts in one array (1 GiB of int64); 61 layers x 256 GPUs x 256 experts are 2**22."""

_ENCODING = "int64-le+zlib+base64"


def encode_counts(counts: npt.NDArray[np.integer]) -> dict[str, Any]:
    """Return ``{"encoding", "shape", "data"}`` for an array of counts of any shape."""
    raw = np.ascontiguousarray(counts, dtype="<i8").tobytes()
    data = base64.b64encode(zlib.compress(raw, level=1)).decode("ascii")
    return {"encoding": _ENCODING, "shape": list(counts.shape), "data": data}


def decode_counts(message: object, where: str, *, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Read an encoded array that must have ``shape``; the data never unpack to more than that.

    Raises
    ------
    ContractViolation
        When the encoding, the shape or the data's size is another one, or a count is negative.
    """
    fields = Fields(message, where)
    fields.text("encoding", allowed=(_ENCODING,))
    found = fields.integers("shape")
    if found != shape:
        raise ContractViolation(f"{where} has shape {list(found)}; it must be {list(shape)}.")
    expected_bytes = 8 * math.prod(shape)
    if math.prod(shape) > MAX_COUNTS:
        raise ContractViolation(f"{where} holds {math.prod(shape)} counts; at most {MAX_COUNTS} are read.")
    raw = _unpacked(fields.text("data"), where, limit_bytes=expected_bytes)
    if len(raw) != expected_bytes:
        raise ContractViolation(f"{where}.data unpacks to {len(raw)} bytes; {expected_bytes} are needed.")
    counts = np.frombuffer(raw, dtype="<i8").astype(np.int64).reshape(shape)
    if counts.size and int(counts.min()) < 0:
        raise ContractViolation(f"{where} holds the count {int(counts.min())}; counts are >= 0.", code="NEGATIVE_COUNT")
    return counts


def _unpacked(data: str, where: str, *, limit_bytes: int) -> bytes:
    """Decompress at most ``limit_bytes`` + 1 bytes: one more than allowed shows that there were too many."""
    try:
        packed = base64.b64decode(data, validate=True)
        return zlib.decompressobj().decompress(packed, limit_bytes + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ContractViolation(f"{where}.data is not base64 of zlib data ({error}).") from None
