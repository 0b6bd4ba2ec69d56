"""The machines of a Ray cluster (extra ``moeplan[ray]``)."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from api.errors import RayMissing, RayUnreachable
from api.workers.fan_out import RunTask
from placement.solver.batches import SearchTask
from placement.solver.plans import Plans

CONNECT_S = 5.0
"""Ray itself tries for minutes to reach an address at which nobody listens."""

HTTP2_FRAME_HEADER = 9
HTTP2_SETTINGS = 4
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, HTTP2_SETTINGS, 0, 0, 0, 0, 0])
"""What a client begins with: the magic line, and settings without any."""


class RayCrew:
    """One worker for every CPU of a cluster; this process must run on one of its machines.

    The address is that of ``RAY_ADDRESS``; without one Ray takes the cluster of this machine, or starts one here.
    moeplan must be installed on every machine, in the same version.

    Raises
    ------
    RayMissing
        Ray is not installed.
    RayUnreachable
        Nobody listens at the address, or Ray cannot connect.
    """

    def __init__(self) -> None:
        # Only a cluster that is started here is concerned: planning reports to nobody.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise RayMissing("--workers ray needs Ray, which is not installed: pip install 'moeplan[ray]'.") from error
        self._ray: Any = ray
        self._joined = not ray.is_initialized()
        if self._joined:
            _join(ray)
        self.size = max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Retried by FanOut, which tells of it.
        self._remote: Any = ray.remote(num_cpus=1, max_retries=0)(_run)
        self._sent: dict[Future[Plans], Any] = {}

    def submit(self, run: RunTask, task: SearchTask) -> Future[Plans]:
        """Send a task out; Ray starts new workers by itself."""
        reference = self._remote.remote(run, task)
        future: Future[Plans] = reference.future()
        self._sent = {sent: kept for sent, kept in self._sent.items() if not sent.done()}
        self._sent[future] = reference
        return future

    def close(self) -> None:
        """Stop what still runs, and leave the cluster if it was joined for this."""
        for future, reference in self._sent.items():
            if not future.done():
                with suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(reference, force=True)
        if self._joined:
            self._ray.shutdown()


def _run(run: RunTask, task: SearchTask) -> Plans:
    return run(task)


def _join(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS", "")
    _require_listener(address)
    try:
        with _our_signals():
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        said = " ".join(str(error).split())[:200].rstrip(" .")
        raise RayUnreachable(
            f"no Ray cluster answers at {address or 'this machine'}: {said}. A cluster with a token answers only who "
            "has it too, in RAY_AUTH_TOKEN or the file of RAY_AUTH_TOKEN_PATH, and RAY_AUTH_MODE=token."
        ) from error


def _require_listener(address: str) -> None:
    """Refuse an address at which no Ray listens; anything but host:port is left to Ray."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or "/" in host:
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as connection:
            speaks = os.environ.get("RAY_USE_TLS", "0") != "0" or _speaks_http2(connection)
    except (OSError, OverflowError) as error:
        raise RayUnreachable(
            f"nobody listens at the Ray address {address} (RAY_ADDRESS): {error}; "
            "ray start --head prints the address of a cluster."
        ) from error
    if not speaks:
        raise RayUnreachable(
            f"what listens at the Ray address {address} (RAY_ADDRESS) is no Ray; ray start --head prints the address "
            "of a cluster."
        )


def _speaks_http2(connection: socket.socket) -> bool:
    """Tell whether the other side answers as gRPC servers do, Ray's among them: with the settings of HTTP/2.

    Ray waits for minutes for an answer from a server that speaks something else (RFC 9113, section 3.4).
    """
    connection.settimeout(CONNECT_S)
    answer = b""
    try:
        connection.sendall(HTTP2_PREFACE)
        while len(answer) < HTTP2_FRAME_HEADER and (more := connection.recv(HTTP2_FRAME_HEADER - len(answer))):
            answer += more
    except OSError:  # silent, or gone
        return False
    return len(answer) == HTTP2_FRAME_HEADER and answer[3] == HTTP2_SETTINGS


@contextmanager
def _our_signals() -> Iterator[None]:
    """Keep this process's handler of SIGTERM: Ray sets its own, which skips ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
