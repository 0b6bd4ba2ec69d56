"""A service that answers on a port of its own, in a thread of the test process; and a stand-in for one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp

from api.http.app import create_app
from profiler.http_server import HttpServer, listening_on, url_of
from tests.api.services import WorkerProcess, service_on


@contextmanager
def answering(app: ASGIApp) -> Iterator[str]:
    """Serve an application; its URL."""
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1, lifespan="off")
    with listening_on("127.0.0.1", 0) as listener, HttpServer(config).serving_beside(listener, name="test-http"):
        yield url_of(listener)


@contextmanager
def running_service(folder: Path, **settings: Any) -> Iterator[str]:
    """Run a service on SQLite with one worker process; its URL. It logs nothing: commands run in the same process."""
    with (
        without_logs(),
        service_on(f"sqlite:///{folder}/moeplan.db", folder / "data", **settings) as service,
        WorkerProcess(service.settings, "worker"),
        answering(create_app(service)) as url,
    ):
        yield url


@contextmanager
def without_logs() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
