"""Signing in and out."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from api.errors import KeyMissing, KeyRefused
from api.http.edge import SESSION_COOKIE, Reader, the_service
from api.pages.rendering import SECURITY_HEADERS, pages_of
from api.pages.routes import page_router
from api.service import browser_sessions
from api.service import keys as key_service

router = page_router()

LONGEST_KEY = 1000


@router.get("/login")
def login_page(request: Request, next: Annotated[str, Query(max_length=2000)] = "/") -> Response:
    """Ask for a key; where the service has none, say who is let in."""
    return _form(request, next, status=200, error="")


@router.post("/login")
def sign_in(
    request: Request,
    key: Annotated[str, Form(max_length=LONGEST_KEY)] = "",
    next: Annotated[str, Form(max_length=2000)] = "/",
) -> Response:
    """Take a key and give a session for it."""
    _require_own_origin(request)
    try:
        cookie = browser_sessions.begin(the_service(request), key.strip())
    except KeyRefused as error:
        return _form(request, next, status=401, error=f"{error.detail[0].upper()}{error.detail[1:]}")
    response = RedirectResponse(_own_path(next), status_code=303, headers=dict(SECURITY_HEADERS))
    response.set_cookie(
        SESSION_COOKIE,
        cookie,
        max_age=browser_sessions.LONGEST_S,
        path="/",
        httponly=True,
        samesite="strict",
        secure=_is_https(request),
    )
    return response


@router.post("/logout")
def sign_out(request: Request) -> Response:
    """Forget the session in this browser."""
    _require_own_origin(request)
    response = RedirectResponse("/login", status_code=303, headers=dict(SECURITY_HEADERS))
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict", secure=_is_https(request))
    return response


@router.get("/whoami")
def who_am_i(request: Request, edge: Reader) -> Response:
    """Say who is signed in, and what they may do."""
    return pages_of(request).page(edge, "whoami.html.j2", section="", title="Signed in", level=str(edge.caller.level))


def _form(request: Request, next_path: str, *, status: int, error: str) -> Response:
    return pages_of(request).bare(
        "login.html.j2",
        status=status,
        title="Sign in",
        next_path=_own_path(next_path),
        error=error,
        keys_needed=key_service.are_needed(the_service(request)),
    )


def _own_path(address: str) -> str:
    """Return a path of this service, ``/`` for anything that leads elsewhere."""
    parts = urlsplit(address)
    own = not parts.scheme and not parts.netloc and address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if own and address.isprintable() else "/"


def _require_own_origin(request: Request) -> None:
    """Refuse a form of somebody else's page: it could sign a browser in with a key of theirs."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise KeyMissing("this form was sent by a page of another origin.")


def _is_https(request: Request) -> bool:
    """Whether the browser speaks https; a header of a proxy can only make the cookie stricter."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
