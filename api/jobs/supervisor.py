"""Keeping workers running beside the service: one that ends is started again, under its old name."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

from api.settings import Settings

SHORTEST_LIFE_S = 5.0
"""A worker that ends sooner is started again only after a pause."""

LONGEST_PAUSE_S = 60.0

log = structlog.get_logger("moeplan.supervisor")


@contextmanager
def running_workers(settings: Settings) -> Iterator[None]:
    """Keep ``settings.workers`` worker processes running while the block runs.

    A worker keeps its name, so that a new one goes on at once with what its predecessor had begun. Workers end when
    this process does, however it ends: they hold its end of a pipe.
    """
    stopping = threading.Event()
    group = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(3)}"
    keepers = [
        threading.Thread(target=_keep, args=(settings, f"{group}-{number}", stopping), name=f"worker-{number}")
        for number in range(settings.workers)
    ]
    for keeper in keepers:
        keeper.start()
    try:
        yield
    finally:
        stopping.set()
        for keeper in keepers:
            keeper.join()


def _keep(settings: Settings, worker_id: str, stopping: threading.Event) -> None:
    pause_s = 1.0
    while not stopping.is_set():
        started_s = time.monotonic()
        process = _start(settings, worker_id)
        while process.poll() is None and not stopping.wait(0.2):
            pass
        _end(process)
        if stopping.is_set():
            return
        lived_s = time.monotonic() - started_s
        pause_s = 0.0 if lived_s > SHORTEST_LIFE_S else min(LONGEST_PAUSE_S, max(1.0, 2 * pause_s))
        log.warning(
            "worker ended", worker=worker_id, code=process.returncode, lived_s=round(lived_s, 1), again_in_s=pause_s
        )
        stopping.wait(pause_s)


def _start(settings: Settings, worker_id: str) -> subprocess.Popen[bytes]:
    others = {name: value for name, value in os.environ.items() if name != "MOEPLAN_CONFIG"}
    return subprocess.Popen(  # noqa: S603  (our own module, in our own interpreter)
        [sys.executable, "-m", "api.jobs.worker", worker_id],
        stdin=subprocess.PIPE,
        env={**others, **settings.as_variables()},
        start_new_session=True,  # Ctrl-C is for the service, which ends its workers
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
