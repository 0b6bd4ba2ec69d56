"""Bounded HTTP to an engine: sizes, times and addresses are limited, and the key stays out of every text."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from placement.errors import BadOption
from profiler.engine.time_limits import CONNECT_S
from profiler.errors import EngineAnswerInvalid, EngineUnreachable

MAX_ANSWER_BYTES = 256 * 2**20

SHORTEST_STARRED_KEY = 4
"""Shorter keys are parts of ordinary words; starring them would only spell them out."""


def without_key(text: str, key: str | None) -> str:
    """Return a text of the engine for messages: one line, at most 200 characters, a repeated key starred."""
    starred = text.replace(key, "***") if key and len(key) >= SHORTEST_STARRED_KEY else text
    return " ".join(starred.split())[:200]


@dataclass(frozen=True)
class Answer:
    """Status and body of an answer that came in whole.

    ``key`` is what the request was sent with: an engine that repeats it must not put it into a message of ours.
    ``clock_s`` is the engine's clock in seconds since 1970, known to the second; None where it does not say.
    """

    status: int
    body: bytes
    key: str | None = field(default=None, repr=False)
    clock_s: float | None = None

    @property
    def text(self) -> str:
        """The body for messages: one line, at most 200 characters."""
        return self.without_key(self.body.decode("utf-8", errors="replace"))

    def without_key(self, text: str) -> str:
        """Return a text of the engine for messages, as :func:`without_key`."""
        return without_key(text, self.key)

    def json(self, what: str) -> Any:
        """Parse the body. Raises :class:`EngineAnswerInvalid` naming ``what`` was asked for."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise EngineAnswerInvalid(f"{what}: the engine's answer is not JSON but {self.text[:80]!r}.") from None


class EngineHttp:
    """One engine's address, and requests to it.

    Redirects are not followed and proxies of the environment are not used, so that a key goes to the engine named
    and nowhere else.

    Parameters
    ----------
    url
        ``http://host:port`` or ``https://...``.
    timeout_s
        For a whole request, unless another is given with it.

    Raises
    ------
    BadOption
        The URL has no host, another scheme, or holds a password.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = _checked_url(url)
        self.timeout_s = timeout_s
        self._connection = _Connection()
        self._client = httpx.Client(
            base_url=self.url,
            follow_redirects=False,
            trust_env=False,
            # Compressed answers could unpack to any size.
            headers={"accept-encoding": "identity"},
        )

    def close(self) -> None:
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        key: str | None,
        body: object = None,
        query: Mapping[str, str | int] | None = None,
        timeout_s: float | None = None,
        attempts: int = 1,
    ) -> Answer:
        """Send one request and read its whole answer.

        Parameters
        ----------
        timeout_s
            For all attempts together; the connection must stand within :data:`CONNECT_S` of it.
        attempts
            How often it is sent when the connection is lost before anything was answered.

        Raises
        ------
        EngineUnreachable
            No connection, or no whole answer in time.
        EngineAnswerInvalid
            The answer is larger than :data:`MAX_ANSWER_BYTES`, or no HTTP.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        what = f"{method} {self.url}{path}"
        request = self._client.build_request(
            method,
            path,
            params=dict(query or {}),
            json=body,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(limit_s, connect=min(limit_s, CONNECT_S)),
        )
        request.extensions["trace"] = self._connection.follow
        while True:
            attempts -= 1
            try:
                return self._exchange(request, key, what, limit_s=limit_s, deadline_s=deadline_s)
            except httpx.ConnectTimeout:
                raise EngineUnreachable(f"{what}: no connection within {min(limit_s, CONNECT_S):g} s.") from None
            except httpx.TimeoutException:
                raise _too_slow(what, limit_s) from None
            except (httpx.TransportError, httpx.DecodingError) as error:
                if time.monotonic() >= deadline_s:
                    raise _too_slow(what, limit_s) from None
                if not attempts or not _was_lost(error):
                    raise _unusable(error, what) from None
            except UnicodeError:
                raise EngineUnreachable(f"{what}: this is no host name.") from None

    def _exchange(
        self, request: httpx.Request, key: str | None, what: str, *, limit_s: float, deadline_s: float
    ) -> Answer:
        with self._connection.cut_after(max(0.0, deadline_s - time.monotonic())):
            response = self._client.send(request, stream=True)
            try:
                body_bytes = _whole_body(response, what, deadline_s=deadline_s, limit_s=limit_s)
                clock_s = _clock_s(response.headers.get("date", ""))
                return Answer(response.status_code, body_bytes, key, clock_s)
            finally:
                response.close()


def _was_lost(error: httpx.RequestError) -> bool:
    """Whether the connection ended before anything was answered."""
    return isinstance(error, httpx.ReadError | httpx.WriteError) or "without sending a response" in str(error)


def _clock_s(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


class _Connection:
    """The socket of the connection in use, so that it can be cut.

    httpx limits the time between two pieces of an answer. An engine that sends one header after another stays below
    that limit for ever, so the whole request is timed here.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def follow(self, event: str, details: Mapping[str, Any]) -> None:
        """Take note of a new connection: httpx's ``trace`` extension."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = details["return_value"].get_extra_info("socket")

    @contextmanager
    def cut_after(self, limit_s: float) -> Iterator[None]:
        """Cut the connection when the block takes longer."""
        timer = threading.Timer(limit_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it may have ended meanwhile
                self._socket.shutdown(socket.SHUT_RDWR)


def _unusable(error: httpx.RequestError, what: str) -> EngineUnreachable | EngineAnswerInvalid:
    if "without sending complete message" in str(error):
        return EngineUnreachable(f"{what}: the engine closed the connection before its answer was whole ({error}).")
    if isinstance(error, httpx.RemoteProtocolError | httpx.DecodingError):
        return EngineAnswerInvalid(f"{what}: the answer is not valid HTTP ({error}).")
    return EngineUnreachable(f"{what}: the engine cannot be reached ({error}).")


def checked_key(key: str | None, name: str) -> str | None:
    """Return a key that can be sent in a header. Raises :class:`BadOption`, which does not repeat the key."""
    if key is not None and (not key or not key.isascii() or not key.isprintable() or key != key.strip()):
        raise BadOption(f"{name} must be printable ASCII text without spaces around it.")
    return key


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
        # In the form that goes to the resolver: it may fail to be one.
        named = bool(parsed.host and parsed.host.encode("idna"))
    except (httpx.InvalidURL, ValueError, TypeError):
        raise BadOption("the engine's URL cannot be read; an example is http://127.0.0.1:30000.") from None
    if parsed.userinfo:
        raise BadOption("the engine's URL holds a user name or password; give the key apart from the URL.")
    usable = parsed.scheme in ("http", "https") and named and (parsed.port is None or 0 < parsed.port < 2**16)
    if not usable or parsed.query or parsed.fragment:
        # A key may stand in what is not asked for.
        found = "" if {"@", "?", "#"} & set(url) else f" {url!r}"
        raise BadOption(f"the engine's URL{found} must be like http://127.0.0.1:30000, with nothing behind the path.")
    return str(parsed).rstrip("/")


def _whole_body(response: httpx.Response, what: str, *, deadline_s: float, limit_s: float) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise EngineAnswerInvalid(f"{what}: the answer is compressed, which was not asked for.")
    stated = response.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and int(stated[:20]) > MAX_ANSWER_BYTES:
        raise EngineAnswerInvalid(f"{what}: the answer is larger than {MAX_ANSWER_BYTES} bytes.")
    body = bytearray()
    for piece in response.iter_raw():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise EngineAnswerInvalid(f"{what}: the answer is larger than {MAX_ANSWER_BYTES} bytes.")
        if time.monotonic() > deadline_s:
            raise _too_slow(what, limit_s)
    if time.monotonic() > deadline_s:  # a body without a stated length ends where the connection was cut
        raise _too_slow(what, limit_s)
    return bytes(body)


def _too_slow(what: str, limit_s: float) -> EngineUnreachable:
    return EngineUnreachable(f"{what}: no whole answer within {limit_s:g} s.")
