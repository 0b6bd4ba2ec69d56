"""The edge: who asks, one transaction for each change, answers that a repeated request gets again."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from api.errors import (
    AdminNeeded,
    BadIdempotencyKey,
    IdempotencyKeyReused,
    KeyMissing,
    VersionChanged,
    VersionNeeded,
)
from api.http.engine_calls import EngineCalls
from api.service import browser_sessions
from api.service import keys as key_service
from api.service.context import Service
from api.service.keys import Caller
from api.states import Level
from api.store import keys
from api.store.audit import Actor
from api.store.database import Session
from api.store.pages import Paging
from profiler.http_server import is_loopback

LONGEST_IDEMPOTENCY_KEY = 200
MOST_PER_PAGE = 200

FAST_COMPRESSION = 2
"""Of gzip: counts shrink nearly as much as at the highest level, in a fifth of the time."""

SESSION_COOKIE = "moeplan_session"
CSRF_HEADER = "X-CSRF-Token"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

bearer = HTTPBearer(
    auto_error=False,
    description="A key of the level read or admin. Without any key the service answers the loopback only.",
)


@dataclass(frozen=True)
class Answer:
    """What a change answers: a status, a body and headers."""

    status: int
    body: BaseModel | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def rendered(self) -> bytes:
        return b"" if self.body is None else self.body.model_dump_json().encode()


@dataclass(frozen=True)
class Edge:
    """One request and who sent it."""

    service: Service
    request: Request
    caller: Caller
    csrf_token: str = ""
    """What a signed-in browser sends with every change; empty for callers that need none."""

    @property
    def actor(self) -> Actor:
        return Actor(self.caller.who, request_id=self.request.state.request_id)

    def waiting_for(self, engine: str) -> AbstractContextManager[None]:
        """Hold one of the few places for requests that wait for an engine. Raises :class:`EngineCallsFull`."""
        calls: EngineCalls = self.request.app.state.engine_calls
        return calls.waiting_for(engine)

    def change(self, act: Callable[[Session], Answer]) -> Response:
        """Make a change in one transaction and answer."""
        with self.service.database.writing() as session:
            answer = act(session)
        return _response(answer.status, answer.rendered(), answer.headers)

    def once(self, sent: Any, act: Callable[[Session], Answer]) -> Response:
        """Make a change at most once for an ``Idempotency-Key``: a repeated request gets the first one's answer.

        Parameters
        ----------
        sent
            What makes a request the same as an earlier one, as JSON.

        Raises
        ------
        BadIdempotencyKey, IdempotencyKeyReused
        """
        key = self.request.headers.get("idempotency-key")
        if key is None:
            return self.change(act)
        if not (0 < len(key) <= LONGEST_IDEMPOTENCY_KEY and key.isascii() and key.isprintable()):
            raise BadIdempotencyKey(f"the idempotency key has {len(key)} characters; it has 1 to 200 printable ones.")
        told = json.dumps([self.request.method, self.request.url.path, sent], sort_keys=True)
        digest = hashlib.sha256(told.encode("utf-8", errors="surrogatepass")).hexdigest()
        who = hashlib.sha256(self.caller.who.encode()).hexdigest()
        with self.service.database.writing() as session:
            found = keys.claim_answer(session, who=who, key=key, request_sha256=digest)
            if found is not None:
                if found.request_sha256 != digest:
                    raise IdempotencyKeyReused(f"the idempotency key {key!r} was used for another request.")
                return _response(found.status, found.body, {**found.headers, "Idempotency-Replayed": "true"})
            answer = act(session)
            body = answer.rendered()
            keys.keep_answer(session, who=who, key=key, status=answer.status, headers=answer.headers, body=body)
        return _response(answer.status, body, answer.headers)

    def require_version(self, version: int) -> None:
        """Refuse a change of something that has changed since it was read.

        Raises
        ------
        VersionNeeded, VersionChanged
        """
        given = self.request.headers.get("if-match")
        if given is None:
            raise VersionNeeded(f"send If-Match: {etag(version)} to change it as it is now.")
        self.require_version_if_given(version)

    def require_version_if_given(self, version: int) -> None:
        """As :meth:`require_version`, where ``If-Match`` is sent at all."""
        given = self.request.headers.get("if-match")
        if given is not None and given.strip() not in ("*", etag(version)):
            raise VersionChanged(f"it is version {etag(version)} by now, not {given[:40]}; read it again.")

    def is_known(self, tag: str) -> bool:
        """Whether the caller has this version already (``If-None-Match``)."""
        given = self.request.headers.get("if-none-match", "")
        return any(each.strip().removeprefix("W/") in (tag, "*") for each in given.split(",") if each.strip())

    def read(self, body: BaseModel, *, tag: str | None = None) -> Response:
        """Answer with what was read, or with 304 where the caller has it."""
        headers = {} if tag is None else {"ETag": tag}
        if tag is not None and self.is_known(tag):
            return Response(status_code=304, headers=headers)
        return _response(200, body.model_dump_json().encode(), headers)

    def content(self, content: bytes, *, media_type: str, tag: str, file_name: str | None = None) -> Response:
        """Answer with bytes that never change under their tag."""
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if self.is_known(tag):
            return Response(status_code=304, headers=headers)
        if file_name is not None:
            headers["Content-Disposition"] = f'attachment; filename="{file_name}"'
        return Response(content, media_type=media_type, headers=headers)

    def compressed(self, content: bytes, *, media_type: str, tag: str) -> Response:
        """As :meth:`content`, compressed where the caller takes that; a compressed answer has a tag of its own.

        For numbers only: nothing secret stands beside what a caller chose, so sizes tell nobody anything.
        """
        headers = {"Vary": "Accept-Encoding", "Cache-Control": "private, no-cache"}
        if "gzip" in self.request.headers.get("accept-encoding", ""):
            tag = f'{tag[:-1]}-gzip"'
        if self.is_known(tag):
            return Response(status_code=304, headers=headers | {"ETag": tag})
        if tag.endswith('-gzip"'):
            whole, kept = content, self.request.app.state.heat
            content = kept.get(f"gzip {tag}", lambda: gzip.compress(whole, compresslevel=FAST_COMPRESSION, mtime=0))
            headers["Content-Encoding"] = "gzip"
        return Response(content, media_type=media_type, headers=headers | {"ETag": tag})


def etag(version: int) -> str:
    """Return the ETag of a version."""
    return f'"v{version}"'


def _response(status: int, body: bytes, headers: dict[str, str]) -> Response:
    return Response(body, status_code=status, headers=headers, media_type="application/json" if body else None)


def the_service(request: Request) -> Service:
    """Return the service that the application was made for."""
    service: Service = request.app.state.service
    return service


Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def reader(request: Request, credentials: Credentials) -> Edge:
    """Let in whoever may read."""
    service = the_service(request)
    if credentials is not None:
        return Edge(service, request, key_service.recognise(service, credentials.credentials))
    if request.headers.get("authorization") is not None:
        raise KeyMissing("the header Authorization is not Bearer KEY.")
    if key_service.are_needed(service):
        cookie = request.cookies.get(SESSION_COOKIE)
        if cookie is not None:
            return _signed_in(service, request, cookie)
        raise KeyMissing("this needs a key, in the header Authorization: Bearer KEY.")
    _require_loopback(request)
    return Edge(service, request, Caller("loopback", Level.ADMIN))


def _signed_in(service: Service, request: Request, cookie: str) -> Edge:
    """Let a browser in by its session; what it changes must carry the session's token."""
    session = browser_sessions.read(service, cookie)
    if request.method not in SAFE_METHODS:
        session.require_token(request.headers.get(CSRF_HEADER))
    return Edge(service, request, session.caller, session.csrf_token)


def admin(edge: Annotated[Edge, Depends(reader)]) -> Edge:
    """Let in whoever may change things."""
    if edge.caller.level is not Level.ADMIN:
        raise AdminNeeded("this key may read; what was asked needs one of the level admin.")
    return edge


def paging(
    limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="Rows in a page.")] = 50,
    cursor: Annotated[
        str | None, Query(max_length=200, description="`next_cursor` of the page before.", examples=[None])
    ] = None,
) -> Paging:
    """Read which page is asked for."""
    return Paging(limit, cursor)


def _require_loopback(request: Request) -> None:
    """Without keys, answer this machine alone, and no page in its browser.

    A page of somebody else can send requests here and, by a name that resolves to the loopback, read the answers. It
    cannot hide where it comes from: its requests have an ``Origin``, or another ``Host``.
    """
    host = request.client.host if request.client is not None else ""
    if not (is_loopback(host) and is_loopback(request.url.hostname or "")):
        raise KeyMissing("the service has no key yet and answers on this machine alone; set MOEPLAN_ADMIN_API_KEY.")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.url.netloc}":
        raise KeyMissing("the service has no key yet and answers no web page of another origin.")


Reader = Annotated[Edge, Depends(reader)]
Admin = Annotated[Edge, Depends(admin)]
Pages = Annotated[Paging, Depends(paging)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", max_length=LONGEST_IDEMPOTENCY_KEY,
        description="A request repeated within a day under the same key is done once.",
    ),
]  # fmt: skip
IfMatch = Annotated[str | None, Header(alias="If-Match", description="The ETag that was read.")]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", description="An ETag that is known.")]
