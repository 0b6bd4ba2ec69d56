"""Engines that misbehave: a server in front of a good engine that answers late, never, half, wrongly or without end."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LONGEST_WAIT_S = 120.0
"""A connection that is never answered is dropped so long after it was taken, so that no thread stays for ever."""


class Exchange(BaseHTTPRequestHandler):
    """One request, and what may be done with it."""

    protocol_version = "HTTP/1.1"
    server: _Server

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    def forwarded(self) -> tuple[int, bytes]:
        """Ask the good engine and return its answer."""
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else None
        kept = {name: self.headers[name] for name in ("authorization", "content-type") if self.headers[name]}
        asked = urllib.request.Request(
            self.server.engine.good_url + self.path, data=body, headers=kept, method=self.command
        )
        try:
            with urllib.request.urlopen(asked, timeout=LONGEST_WAIT_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

    def answer(self, status: int, body: bytes, *, stated_bytes: int | None = None) -> None:
        """Send an answer; ``stated_bytes`` is what it claims to have."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if stated_bytes is None else stated_bytes))
        self.end_headers()
        self.wfile.write(body)

    def _handle(self) -> None:
        engine = self.server.engine
        engine.asked.append(f"{self.command} {self.route}")
        fault = engine.fault if engine.only is None or self.route in engine.only else None
        with suppress(OSError):  # whoever asked has gone
            (fault or passes_on)(self)

    do_GET = do_POST = do_PUT = _handle

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


Fault = Callable[[Exchange], None]


@dataclass
class FaultyEngine:
    """A good engine behind a server that may misbehave.

    Attributes
    ----------
    good_url, url : str
        The engine's own, and the one in front.
    fault : callable or None
        What is done with a request; None passes it on.
    only : tuple of str or None
        Routes that the fault is for; None is all.
    asked : list of str
        Every request that came, like ``GET /moeplan/health``.
    ending : threading.Event
        Set when it is over.
    """

    good_url: str
    url: str = ""
    fault: Fault | None = None
    only: tuple[str, ...] | None = None
    asked: list[str] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, engine: FaultyEngine) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.engine = engine


@contextmanager
def faulty_engine(good_url: str, fault: Fault | None, *, only: tuple[str, ...] | None = None) -> Iterator[FaultyEngine]:
    """Put a misbehaving server in front of an engine while the block runs."""
    engine = FaultyEngine(good_url, fault=fault, only=only)
    server = _Server(engine)
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        engine.ending.set()
        server.shutdown()
        thread.join()
        server.server_close()


def passes_on(exchange: Exchange) -> None:
    exchange.answer(*exchange.forwarded())


def slow(seconds: float) -> Fault:
    """Answer rightly, and late."""

    def fault(exchange: Exchange) -> None:
        exchange.server.engine.ending.wait(seconds)
        passes_on(exchange)

    return fault


def half_open(exchange: Exchange) -> None:
    """Take the connection and never answer."""
    exchange.server.engine.ending.wait(LONGEST_WAIT_S)
    exchange.close_connection = True


def closes_at_once(exchange: Exchange) -> None:
    """Close the connection before anything is answered."""
    exchange.close_connection = True


def closes_in_the_middle(exchange: Exchange) -> None:
    """Close the connection when half of the body is sent."""
    status, body = exchange.forwarded()
    exchange.answer(status, body[: len(body) // 2], stated_bytes=len(body))
    exchange.close_connection = True


def drips(exchange: Exchange) -> None:
    """Send a body byte by byte, each well within any limit between two pieces."""
    status, body = exchange.forwarded()
    exchange.answer(status, b"", stated_bytes=len(body))
    for each in body:
        exchange.wfile.write(bytes([each]))
        if exchange.server.engine.ending.wait(0.05):
            break
    exchange.close_connection = True


def garbage(exchange: Exchange) -> None:
    """Answer with bytes that are nothing."""
    exchange.forwarded()
    exchange.answer(200, b"\x00\xff{]\x1b[31m" * 50)


def another_page(exchange: Exchange) -> None:
    """Answer as a proxy does that knows no such place."""
    exchange.forwarded()
    exchange.answer(200, b"<!doctype html><title>Welcome to the proxy</title>")


def huge(stated_bytes: int) -> Fault:
    """State a body of so many bytes and send blanks until nobody reads any more."""

    def fault(exchange: Exchange) -> None:
        exchange.forwarded()
        exchange.answer(200, b"", stated_bytes=stated_bytes)
        left, piece = stated_bytes, b" " * 2**20
        while left > 0 and not exchange.server.engine.ending.is_set():
            exchange.wfile.write(piece[:left])
            left -= len(piece)

    return fault


def fails(exchange: Exchange) -> None:
    """Answer with status 500."""
    exchange.forwarded()
    exchange.answer(500, b'{"error": "Internal Server Error"}')


def lies(change: Callable[[Any], None]) -> Fault:
    """Answer with the good engine's message after ``change`` was done to it."""

    def fault(exchange: Exchange) -> None:
        status, body = exchange.forwarded()
        message = json.loads(body)
        if status == 200:
            change(message)
        exchange.answer(status, json.dumps(message).encode())

    return fault


def after(requests: int, fault: Fault) -> Fault:
    """Begin with a fault only when so many requests were passed on."""
    left = threading.Semaphore(requests)

    def later(exchange: Exchange) -> None:
        (passes_on if left.acquire(blocking=False) else fault)(exchange)

    return later
