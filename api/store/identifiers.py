"""Identifiers that sort by the time they were made."""

from __future__ import annotations

import re
import secrets
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no letter is taken for another."""

TIME_BITS, RANDOM_BITS = 48, 80
IDENTIFIER = re.compile(rf"[a-z]{{2,4}}_[{ALPHABET}]{{26}}")


def new_id(kind: str) -> str:
    """Return ``kind``, an underscore, and 128 bits: milliseconds since 1970, then randomness."""
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds << RANDOM_BITS) | secrets.randbits(RANDOM_BITS)
    digits = "".join(ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))
    return f"{kind}_{digits}"
