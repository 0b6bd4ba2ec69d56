"""Keys: making, revoking and recognising them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime

from pydantic import SecretStr

from api.errors import BadRequest, KeyRefused, WrongState
from api.service.context import Service
from api.states import Level
from api.store import audit, keys
from api.store.audit import Actor
from api.store.columns import now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Key

PREFIX = "mp_"
SHOWN_CHARACTERS = 8


@dataclass(frozen=True)
class Caller:
    """Who asks, and what they may do."""

    who: str
    level: Level


def make(session: Session, actor: Actor, *, name: str, level: Level, expires_at: datetime | None) -> tuple[Key, str]:
    """Make a key; the second value is the key itself, which nobody can be told again.

    Raises
    ------
    BadRequest
        It would have expired already.
    """
    if expires_at is not None and expires_at <= now():
        raise BadRequest(f"expires_at is {expires_at.isoformat()}, which is over.")
    secret = PREFIX + secrets.token_urlsafe(32)
    key = Key(
        id=new_id("key"),
        name=name,
        level=level,
        sha256=_hash(secret),
        starts_with=secret[:SHOWN_CHARACTERS],
        created_by=actor.who,
        created_at=now(),
        expires_at=expires_at,
    )
    session.add(key)
    audit.record(session, actor, "key.made", key, level=str(level))
    return key, secret


def revoke(session: Session, actor: Actor, key: Key, *, why: str) -> None:
    """Let a key open nothing any more. Raises :class:`WrongState`."""
    if key.revoked_at is not None:
        raise WrongState(f"the key {key.name!r} is revoked already.")
    key.revoked_at = now()
    audit.record(session, actor, "key.revoked", key, why=why)


def recognise(service: Service, secret: str) -> Caller:
    """Return whose key this is; when it was used is written down now and then.

    Raises
    ------
    KeyRefused
        Unknown, expired or revoked: not said which, except to its owner.
    """
    for level, setting in (
        (Level.ADMIN, service.settings.admin_api_key),
        (Level.READ, service.settings.api_key),
    ):
        if _is(secret, setting):
            return Caller(f"setting:{level}", level)
    at = now()
    with service.database.reading() as session:
        key = keys.by_hash(session, _hash(secret))
    if key is None:
        raise KeyRefused("the key is not one of this service.")
    if key.revoked_at is not None:
        raise KeyRefused(f"the key {key.name!r} was revoked.")
    if key.expires_at is not None and key.expires_at <= at:
        raise KeyRefused(f"the key {key.name!r} has expired.")
    if keys.is_use_unwritten(key, at):
        service.key_uses.note(key.id, at)
    return Caller(f"key:{key.name}", key.level)


def are_needed(service: Service) -> bool:
    """Whether requests need a key: as soon as there is or was any, in the settings or in the database."""
    if service.settings.admin_api_key is not None or service.settings.api_key is not None:
        return True
    with service.database.reading() as session:
        return keys.any_made(session)


def _is(secret: str, setting: SecretStr | None) -> bool:
    if setting is None:
        return False
    return hmac.compare_digest(secret.encode(), setting.get_secret_value().encode())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
