"""Engines' keys: named by a reference, read when they are used, never stored and never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from api.errors import BadSecretReference, SecretMissing

REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,199}|file:/[^\0\r\n]{1,490}")
LONGEST_SECRET = 4096


def checked_reference(reference: str) -> str:
    """Return a reference that can be followed.

    Raises
    ------
    BadSecretReference
        The message does not repeat it: it may be the secret itself.
    """
    if not REFERENCE.fullmatch(reference):
        raise BadSecretReference(
            "an engine's key is given by reference: env:NAME for a variable of the service, or file:/PATH for a file "
            "on its machine; what was sent is neither, and was not kept."
        )
    return reference


def follow(reference: str | None, *, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the secret that a reference names, None for none.

    Raises
    ------
    SecretMissing
        The variable is not set, or the file cannot be read, is empty or too large.
    """
    if reference is None:
        return None
    kind, _, name = checked_reference(reference).partition(":")
    if kind == "env":
        secret = environment.get(name, "")
        if not secret:
            raise SecretMissing(f"the variable {name} is not set where the service runs.")
        return secret
    try:
        with Path(name).open("rb") as file:
            content = file.read(LONGEST_SECRET + 1)
        secret = content.decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretMissing(f"the file {name} cannot be read as a key: {type(error).__name__}.") from None
    if not secret or len(content) > LONGEST_SECRET:
        raise SecretMissing(f"the file {name} holds no key of at most {LONGEST_SECRET} bytes.")
    return secret
