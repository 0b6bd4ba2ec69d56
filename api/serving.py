"""``moeplan serve``: the API, and workers beside it."""

from __future__ import annotations

import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import uvicorn

from api.errors import BadSetting
from api.http.app import create_app
from api.jobs.supervisor import running_workers
from api.logs import configure_logs
from api.service.context import open_service
from api.service.keys import are_needed
from api.settings import Settings
from profiler.errors import AddressNotAvailable

SHUTDOWN_GRACE_S = 5
"""Requests that are still open are dropped so long after the service was told to stop."""


def serve(settings: Settings, *, on_ready: Callable[[str, bool], None] = lambda url, open_to_all: None) -> None:
    """Serve until SIGINT or SIGTERM, then return.

    Parameters
    ----------
    on_ready
        Called once requests are answered: with the URL, and whether no key is needed.

    Raises
    ------
    BadSetting
        There is no key, and others than this machine could reach the service.
    StateError, AddressNotAvailable
    """
    with open_service(settings) as service, _listening(settings) as listener:
        open_to_all = not are_needed(service)
        if open_to_all and not _is_loopback(settings.host):
            raise BadSetting(
                f"{settings.host} can be reached by others and there is no key yet: set MOEPLAN_ADMIN_API_KEY, or "
                "listen on 127.0.0.1."
            )
        configure_logs(settings.log_level)
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{shown}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks from where decides what is open: no header may claim it
            timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        )
        server = _Server(config, lambda: on_ready(url, open_to_all))
        workers = running_workers(settings) if settings.workers else nullcontext()
        with _signals_end_quietly(), workers:
            server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A uvicorn server that says when it answers requests."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        raise AddressNotAvailable(f"{settings.host}, port {settings.port} cannot be listened on: {error}.") from error
    with listener:
        yield listener


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server and not the process: uvicorn sends itself the signal again at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
