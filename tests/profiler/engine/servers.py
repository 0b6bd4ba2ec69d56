"""Engines that answer as a test says, over a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.profiler.engine.messages import health, placement

Handler = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Told:
    """What the server was asked, in order: method and path without its query."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def answer(message: object = None, *, status: int = 200, raw: bytes | None = None, **headers: str) -> Handler:
    """Return a handler that sends JSON, or ``raw`` bytes as they are."""

    def handle(request: BaseHTTPRequestHandler) -> None:
        body = json.dumps(message).encode() if raw is None else raw
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return handle


@contextmanager
def engine_that_answers(routes: Mapping[tuple[str, str], Handler]) -> Iterator[tuple[str, Told]]:
    """Serve routes by method and path; others are 404. The value is the URL and what was asked so far."""
    told = Told()

    class _Engine(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            path = self.path.partition("?")[0]
            self.rfile.read(int(self.headers.get("content-length", 0)))
            told.requests.append((self.command, path))
            told.headers.append(dict(self.headers))
            try:
                routes.get((self.command, path), answer({"detail": "Not Found"}, status=404))(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, format: str, *values: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def healthy_routes(**placement_changes: object) -> dict[tuple[str, str], Handler]:
    """Return the routes of an engine that is alive and reports one placement."""
    return {
        ("GET", "/health"): answer({}),
        ("GET", "/moeplan/health"): answer(health().to_json()),
        ("GET", "/moeplan/placement"): answer(placement(**placement_changes).to_json()),
    }


def in_turn(*handlers: Handler) -> Handler:
    """Return a handler that answers with one after the other, then always with the last."""
    waiting = list(handlers)

    def handle(request: BaseHTTPRequestHandler) -> None:
        (waiting.pop(0) if len(waiting) > 1 else waiting[0])(request)

    return handle


def hangs_up(request: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
    request.close_connection = True
    request.connection.close()
