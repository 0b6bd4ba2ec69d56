"""Running a uvicorn server of ours: its socket, when it is ready, and an end without a traceback."""

from __future__ import annotations

import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from profiler.errors import AddressNotAvailable

BACKLOG = 256
"""Connections that wait to be taken."""


class HttpServer(uvicorn.Server):
    """A uvicorn server that says when it answers requests."""

    on_started: Callable[[], None] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_started()

    def serve_until_told(self, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
        """Answer requests until SIGINT or SIGTERM, then return."""
        self.on_started = on_ready
        with signals_end_quietly():
            self.run(sockets=[listener])

    @contextmanager
    def serving_beside(self, listener: socket.socket, *, name: str) -> Iterator[None]:
        """Answer requests in a thread while the block runs.

        Raises
        ------
        AddressNotAvailable
            The server ended before it was ready.
        """
        ready = threading.Event()
        self.on_started = ready.set
        thread = threading.Thread(target=self.run, kwargs={"sockets": [listener]}, name=name)
        thread.start()
        try:
            while not ready.wait(timeout=0.1):
                if not thread.is_alive():
                    raise AddressNotAvailable(f"the HTTP server did not start on {url_of(listener)}.")
            yield
        finally:
            self.should_exit = True
            thread.join()


@contextmanager
def listening_on(host: str, port: int) -> Iterator[socket.socket]:
    """Give a socket that listens; port 0 takes a free one.

    Raises
    ------
    AddressNotAvailable
        The address is in use, or not one of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise AddressNotAvailable(f"{host}, port {port} cannot be listened on: {error}.") from error
    with listener:
        # Connections inherit it. asyncio sets it itself only on sockets that name TCP, and this one's does not: without
        # it every answer waits 40 ms for the acknowledgement of its headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of what answers on a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host by this name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def signals_end_quietly() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server without ending the process.

    uvicorn sends itself the signal again once it has shut down; a handler of ours makes that harmless, so that the
    caller goes on and the process exits with 0. Signals belong to the main thread; elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
