"""Engines' keys: named by a reference, read when they are used, never stored and never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from api.errors import BadSecretReference, SecretMissing
from api.settings import SECRETS

REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,199}|file:/[^\0\r\n]{1,490}")
LONGEST_SECRET = 4096
OURS = {f"MOEPLAN_{name.upper()}" for name in SECRETS}
"""Variables, and in small letters files, that hold secrets of the service."""


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
    if _is_our_own(reference):
        raise BadSecretReference(
            "the reference names a secret of moeplan itself, which no engine is sent; name the engine's own key."
        )
    return reference


def _is_our_own(reference: str) -> bool:
    """Whether it leads to a secret of the service: whoever registers an engine chooses where its key is sent."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        return name.upper() in OURS
    return PurePath(name).name.lower() in {secret.lower() for secret in OURS}


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
        if not _is_key(secret):
            raise SecretMissing(f"the variable {name} holds no key: one has printable characters and no spaces.")
        return secret
    try:
        with Path(name).open("rb") as file:
            content = file.read(LONGEST_SECRET + 1)
        secret = content.decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretMissing(f"the file {name} cannot be read as a key: {type(error).__name__}.") from None
    if not secret or len(content) > LONGEST_SECRET:
        raise SecretMissing(f"the file {name} holds no key of at most {LONGEST_SECRET} bytes.")
    if not _is_key(secret):
        raise SecretMissing(f"the file {name} holds no key: one line of printable characters without spaces.")
    return secret


def _is_key(text: str) -> bool:
    """Whether a text can be a bearer key; most files that hold something else cannot, and are not sent."""
    return text.isascii() and text.isprintable() and " " not in text
