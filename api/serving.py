"""``moeplan serve``: the API, and workers beside it."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import uvicorn

from api.errors import BadSetting
from api.http.app import create_app
from api.jobs.supervisor import running_workers
from api.logs import configure_logs
from api.service.context import open_service
from api.service.keys import are_needed
from api.settings import Settings
from profiler.http_server import HttpServer, is_loopback, listening_on, signals_end_quietly, url_of

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
    with (
        _server(settings) as (server, listener, open_to_all),
        signals_end_quietly(),  # around the workers too: a second signal must not cut their end short
        _workers(settings),
    ):
        server.serve_until_told(listener, on_ready=lambda: on_ready(url_of(listener), open_to_all))


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """Serve in a thread while the block runs, with its workers; the value is the URL. Errors are those of serve."""
    with (
        _server(settings) as (server, listener, _),
        _workers(settings),
        server.serving_beside(listener, name="moeplan-http"),
    ):
        yield url_of(listener)


def leave_out_of_collections() -> None:
    """Let garbage collections pass over all that is there now, modules above all.

    A collection that goes through a quarter of a million objects of the start holds every request up for 0.2 s.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def _server(settings: Settings) -> Iterator[tuple[HttpServer, socket.socket, bool]]:
    """Open the service and its socket; the last value says whether no key is needed."""
    with open_service(settings) as service, listening_on(settings.host, settings.port) as listener:
        open_to_all = not are_needed(service)
        if open_to_all and not is_loopback(settings.host):
            raise BadSetting(
                f"{settings.host} can be reached by others and there is no key yet: set MOEPLAN_ADMIN_API_KEY, or "
                "listen on 127.0.0.1."
            )
        configure_logs(settings.log_level)
        app = create_app(service)
        leave_out_of_collections()
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks from where decides what is open: no header may claim it
            timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        )
        yield HttpServer(config), listener, open_to_all


def _workers(settings: Settings) -> AbstractContextManager[None]:
    return running_workers(settings) if settings.workers else nullcontext()
