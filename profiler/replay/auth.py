"""SGLang's three levels of access (``srt/utils/auth.py``), as dependencies of FastAPI routes."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from fastapi import Request


class KeyRefused(Exception):
    """The request lacks the key that its route needs."""


def bearer_required(key: str | None) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that lets requests with this bearer key pass, or every request when there is none."""

    async def check(request: Request) -> None:
        if key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode(), key.encode()):
            raise KeyRefused

    return check


def normal_level(*, api_key: str | None) -> Callable[[Request], Awaitable[None]]:
    """Routes that only read: the API key where one is set; the admin key does not open them."""
    return bearer_required(api_key)


def admin_level(*, api_key: str | None, admin_key: str | None) -> Callable[[Request], Awaitable[None]]:
    """Routes that record or change: only the admin key where one is set, else the API key, else open."""
    return bearer_required(admin_key if admin_key is not None else api_key)
