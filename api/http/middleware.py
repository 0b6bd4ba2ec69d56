"""Around every request: an id, a line in the log, and limits of size."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.metrics import HttpMetrics
from api.http.problems import problem_response

USUAL_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer that says nothing else: data, which a browser neither shows as a page nor gives to other sites."""

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = structlog.get_logger("moeplan.http")


class RequestIds:
    """Gives every request an id (that of ``X-Request-ID`` if it is plain), logs and counts it."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        started_s, status = time.perf_counter(), 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in USUAL_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                took_s = time.perf_counter() - started_s
                route = getattr(scope.get("route"), "path", "unknown")
                self._metrics.seen(method=scope["method"], route=route, status=status, took_s=took_s)
                log.info(
                    "request", method=scope["method"], path=scope["path"], status=status, took_ms=round(1e3 * took_s, 1)
                )


@dataclass(frozen=True)
class SizeLimits:
    """Largest bodies.

    Attributes
    ----------
    body_bytes, upload_bytes : int
        Of an ordinary request, and of an upload.
    is_upload : callable
        Tells them apart by method and path.
    """

    body_bytes: int
    upload_bytes: int
    is_upload: Callable[[str, str], bool]


class LimitedBodies:
    """Refuses bodies that are too large, by their stated length or once they are."""

    def __init__(self, app: ASGIApp, limits: SizeLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = self._limits.is_upload(scope["method"], scope["path"])
        most = self._limits.upload_bytes if upload else self._limits.body_bytes
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isascii() and stated.isdigit() and int(stated[:20]) > most:
            await self._refuse(scope, receive, send, most)
            return
        seen, begun = 0, False

        async def limited_receive() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise BodyTooLarge
            return message

        async def noting_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, limited_receive, noting_send)
        except BodyTooLarge:
            if not begun:
                await self._refuse(scope, receive, send, most)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        detail = f"the body is larger than {most} bytes, the most that is taken here."
        response = problem_response(
            Request(scope), status=413, code="TOO_LARGE", detail=detail, headers={"Connection": "close"}
        )
        await response(scope, receive, send)


class BodyTooLarge(BaseException):
    """A body went on beyond its limit. No :class:`Exception`, so that no handler in between answers for it."""
