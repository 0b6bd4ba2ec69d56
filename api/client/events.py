"""Following a job of a service by server-sent events, over breaks of the connection."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from api.client.connection import ServiceConnection
from api.client.problems import error_of
from api.errors import DatabaseUnreachable, JobStopped, ServiceUnreachable
from placement.errors import CodedError

SILENCE_S = 45.0
"""The service says at least every 15 s that it is still there; three in a row missing is a broken connection."""

GIVE_UP_S = 300.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0

ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Event:
    """One event: its id, its kind, and its data."""

    id: str
    kind: str
    data: dict[str, Any]


def events_of(lines: Iterable[str]) -> Iterator[Event]:
    """Parse server-sent events (WHATWG HTML, 9.2.6); comments, and what is cut off at the end, are left out."""
    id_, kind = "", ""
    data: list[str] = []
    for line in lines:
        if line == "":
            if data:
                yield Event(id_, kind or "message", json.loads("\n".join(data)))
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            id_ = value
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)


def follow(service: ServiceConnection, job_id: str, *, after: str = "") -> Iterator[Event]:
    """Yield a job's events until it has ended; after a break it goes on behind the last event.

    Raises
    ------
    ServiceUnreachable
        Nothing was heard for :data:`GIVE_UP_S`; the job goes on without us.
    """
    heard_s, pause_s = time.monotonic(), FIRST_PAUSE_S
    while True:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        try:
            with service.lines(f"/v1/jobs/{job_id}/events", headers=headers, silence_s=SILENCE_S) as lines:
                for event in events_of(lines):
                    after, heard_s, pause_s = event.id, time.monotonic(), FIRST_PAUSE_S
                    yield event
            if service.get(f"/v1/jobs/{job_id}")["state"] in ENDED:
                return
        except (ServiceUnreachable, DatabaseUnreachable) as error:
            if time.monotonic() - heard_s > GIVE_UP_S:
                raise ServiceUnreachable(
                    f"{error.detail.rstrip('.')}, for {GIVE_UP_S:g} s now. The job goes on there: moeplan jobs watch "
                    f"{job_id} follows it again."
                ) from None
        time.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)


def finished(
    service: ServiceConnection, job_id: str, *, progress: Callable[[float], None] | None = None
) -> dict[str, Any]:
    """Wait for a job that this command began, and return it when it has succeeded.

    Whoever stops the command stops the job: it is cancelled there.

    Raises
    ------
    CodedError
        The job's own error, as if it had been made here; :class:`JobStopped` where somebody cancelled it.
    """
    try:
        for event in follow(service, job_id):
            if progress is not None and event.kind == "progress":
                progress(float(event.data["progress"]))
    except BaseException as stopped:
        if not isinstance(stopped, Exception):  # Ctrl-C, a signal
            with suppress(CodedError):
                service.post(f"/v1/jobs/{job_id}/cancel", {"reason": "the command that waited for it was stopped"})
        raise
    return result_of(service, job_id)


def result_of(service: ServiceConnection, job_id: str) -> dict[str, Any]:
    """Return a job that has succeeded; raise the error of one that has not, see :func:`finished`."""
    job: dict[str, Any] = service.get(f"/v1/jobs/{job_id}")
    if job["state"] == "failed":
        raise error_of(job["error"] or {})
    if job["state"] == "cancelled":
        raise JobStopped(f"the job {job_id} was cancelled.")
    return job
