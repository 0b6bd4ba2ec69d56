"""Identifiers that sort by the time they were made."""

from __future__ import annotations

import math
import re
import secrets
import time
from datetime import datetime

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no letter is taken for another."""

TIME_BITS, RANDOM_BITS = 48, 80
IDENTIFIER = re.compile(rf"[a-z]{{2,4}}_[{ALPHABET}]{{26}}")


def new_id(kind: str) -> str:
    """Return ``kind``, an underscore, and 128 bits: milliseconds since 1970, then randomness."""
    milliseconds = time.time_ns() // 1_000_000
    return _rendered(kind, (milliseconds << RANDOM_BITS) | secrets.randbits(RANDOM_BITS))


def first_id_of(kind: str, moment: datetime) -> str:
    """Return what sorts before all identifiers of a kind that were made at a moment or later, to the millisecond."""
    milliseconds = math.floor(moment.timestamp() * 1000)
    return _rendered(kind, min(max(milliseconds, 0), 2**TIME_BITS - 1) << RANDOM_BITS)


def _rendered(kind: str, number: int) -> str:
    digits = "".join(ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))
    return f"{kind}_{digits}"
