"""Sessions of browsers: a key is asked for once, then a signed cookie stands for it.

Nothing is stored: the cookie names the key and is signed with a secret that all processes of a service share, in a
file of the data folder unless it is given as a setting. Every request looks whether the key still opens, so revoking a
key ends its sessions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.errors import CsrfTokenWrong, SessionOver, StoredFileLost
from api.service import keys as key_service
from api.service.context import Service
from api.service.keys import Caller
from api.states import Level
from api.store import keys
from api.store.columns import now

LONGEST_S = 12 * 3600
LONGEST_COOKIE = 2000
SECRET_FILE = "browser-sessions.secret"  # noqa: S105  (the file's name)
SECRET_BYTES = 32


@dataclass(frozen=True)
class BrowserSession:
    """Who is signed in.

    Attributes
    ----------
    caller : Caller
    csrf_token : str
        Must come back in a header with every change: a page of somebody else can send the cookie, but not read this.
    """

    caller: Caller
    csrf_token: str

    def require_token(self, sent: str | None) -> None:
        """Raise :class:`CsrfTokenWrong` unless a change carries the session's token."""
        if sent is None or not hmac.compare_digest(sent.encode(), self.csrf_token.encode()):
            raise CsrfTokenWrong(
                "the header X-CSRF-Token is not that of this session; load the page again and repeat the action."
            )


def begin(service: Service, key: str) -> str:
    """Return the cookie of a new session for whoever has this key.

    Raises
    ------
    KeyRefused, StoredFileLost
    """
    key_service.recognise(service, key)
    told = {"f": _fingerprint(service, key), "e": int(time.time()) + LONGEST_S, "n": secrets.token_urlsafe(16)}
    content = _text(json.dumps(told, separators=(",", ":")).encode())
    return f"{content}.{_signature(service, 'session', content)}"


def read(service: Service, cookie: str) -> BrowserSession:
    """Return the session of a cookie.

    Raises
    ------
    SessionOver
        It is over, is none of this service, or its key opens nothing any more.
    """
    content, _, signature = cookie.partition(".")
    signed = len(cookie) <= LONGEST_COOKIE and cookie.isascii()
    if not signed or not hmac.compare_digest(signature, _signature(service, "session", content)):
        raise SessionOver("this browser's session is none of this service; sign in again.")
    told: dict[str, Any] = json.loads(_bytes(content))
    if told["e"] <= time.time():
        raise SessionOver("this browser's session is over; sign in again.")
    return BrowserSession(_still_there(service, told), _signature(service, "csrf", content))


def _still_there(service: Service, told: dict[str, Any]) -> Caller:
    """Look the key up by its fingerprint: that of the settings, or that of a row."""
    for level, setting in ((Level.ADMIN, service.settings.admin_api_key), (Level.READ, service.settings.api_key)):
        if setting is not None and _signature(service, "setting", setting.get_secret_value()) == told["f"]:
            return Caller(f"setting:{level}", level)
    with service.database.reading() as session:
        key = keys.by_hash(session, str(told["f"]))
    if key is None or key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now()):
        raise SessionOver("the key of this browser's session opens nothing any more; sign in with another.")
    return Caller(f"key:{key.name}", key.level)


def _fingerprint(service: Service, key: str) -> str:
    """Return what a cookie says of a key: the hash that the database has; of a setting's key, one with the secret.

    Keys of the database are 256 random bits, so that their hash tells nothing; those of settings may be short.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()
    with service.database.reading() as session:
        of_database = keys.by_hash(session, digest) is not None
    return digest if of_database else _signature(service, "setting", key)


def _signature(service: Service, purpose: str, text: str) -> str:
    given = service.settings.session_secret
    secret = _secret(service.settings.data_dir / SECRET_FILE) if given is None else given.get_secret_value().encode()
    return hmac.new(secret, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()


def _secret(path: Path) -> bytes:
    """Return the secret of the data folder, made at the first sign-in; another process may make it at the same time."""
    if not path.exists():
        made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        try:
            os.link(made, path)  # whole or not at all, and never over another process's
        except FileExistsError:
            pass
        finally:
            made.unlink()
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise StoredFileLost(
            f"the file {path.name} of the data folder is damaged; remove it, and everybody signs in again."
        )
    return secret


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise SessionOver("this browser's session is none of this service; sign in again.") from None
