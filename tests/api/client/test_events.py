"""Events of a job: parsed as the standard says, and followed over breaks of the connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from api.client import events
from api.client.connection import ServiceConnection
from api.client.events import Event, events_of, finished, follow
from api.errors import JobStopped, ServiceUnreachable
from placement.errors import Infeasible, SlotsBelowExperts
from tests.api.client.serving import answering


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FIRST_PAUSE_S", 0.01)


class JobStandIn:
    """A service with one job, whose stream breaks after every few events."""

    def __init__(self, states: list[dict[str, Any]], *, at_a_time: int = 2, job: dict[str, Any] | None = None) -> None:
        self.states, self.at_a_time = states, at_a_time
        self.job = {"state": "succeeded", "error": None, "result": {"a": 1}, **(job or {})}
        self.asked_after: list[str] = []
        self.sent = 0
        self.cancelled = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/jobs/j/events", self.stream),
                Route("/v1/jobs/j", self.show),
                Route("/v1/jobs/j/cancel", self.cancel, methods=["POST"]),
            ]
        )

    async def stream(self, request: Request) -> StreamingResponse:
        after = request.headers.get("last-event-id", "")
        self.asked_after.append(after)
        first = int(after or 0)

        async def lines() -> AsyncIterator[str]:
            yield ": hello\n\n"
            for number in range(first, min(first + self.at_a_time, len(self.states))):
                self.sent = max(self.sent, number + 1)
                yield f"id: {number + 1}\nevent: progress\ndata: {json.dumps(self.states[number])}\n\n"
            if self.sent < len(self.states):
                yield "id: 99\nevent: progress\nda"  # cut off in the middle
                raise ConnectionResetError

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def show(self, request: Request) -> JSONResponse:
        ended = self.sent == len(self.states)
        return JSONResponse(self.job if ended else {**self.job, "state": "running"})

    async def cancel(self, request: Request) -> JSONResponse:
        self.cancelled += 1
        return JSONResponse(self.job, status_code=202)


def steps(count: int) -> list[dict[str, Any]]:
    return [{"progress": (index + 1) / count, "step": "solving"} for index in range(count)]


def test_events_are_parsed() -> None:
    text = 'id: 7\nevent: progress\ndata: {"a":\ndata: 1}\n\n: comment\n\ndata:{"b":2}\n\nid: 9\ndata: {"cut'
    assert list(events_of(text.split("\n"))) == [Event("7", "progress", {"a": 1}), Event("7", "message", {"b": 2})]


def test_a_job_is_followed_over_breaks_and_no_event_comes_twice() -> None:
    stand_in = JobStandIn(steps(5))
    with answering(stand_in.app()) as url, ServiceConnection(url) as service:
        seen = [event.data["progress"] for event in follow(service, "j")]
    assert seen == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert stand_in.asked_after == ["", "2", "4"]


def test_progress_is_told_and_the_job_returned() -> None:
    told: list[float] = []
    with answering(JobStandIn(steps(2)).app()) as url, ServiceConnection(url) as service:
        assert finished(service, "j", progress=told.append)["result"] == {"a": 1}
    assert told == [0.5, 1.0]


@pytest.mark.parametrize(("code", "kind"), [("INFEASIBLE", Infeasible), ("SLOTS_BELOW_EXPERTS", SlotsBelowExperts)])
def test_a_jobs_error_is_raised_as_if_it_had_been_made_here(code: str, kind: type[Exception]) -> None:
    job = {"state": "failed", "error": {"code": code, "detail": "it says why.", "remedies": ["do this"]}}
    stand_in = JobStandIn(steps(1), job=job)
    with answering(stand_in.app()) as url, pytest.raises(kind, match="it says why") as raised:
        finished(ServiceConnection(url), "j")
    assert getattr(raised.value, "remedies", ()) == ("do this",)


def test_a_cancelled_job_is_said() -> None:
    stand_in = JobStandIn(steps(1), job={"state": "cancelled"})
    with answering(stand_in.app()) as url, pytest.raises(JobStopped):
        finished(ServiceConnection(url), "j")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_whoever_stops_the_command_stops_the_job(stop: type[BaseException]) -> None:
    def stopped(share: float) -> None:
        raise stop

    stand_in = JobStandIn(steps(3))
    with answering(stand_in.app()) as url, ServiceConnection(url) as service, pytest.raises(stop):
        finished(service, "j", progress=stopped)
    assert stand_in.cancelled == 1


def test_an_error_does_not_stop_the_job() -> None:
    def broken(share: float) -> None:
        raise ValueError

    stand_in = JobStandIn(steps(3))
    with answering(stand_in.app()) as url, ServiceConnection(url) as service, pytest.raises(ValueError):
        finished(service, "j", progress=broken)
    assert stand_in.cancelled == 0


def test_after_long_silence_it_is_said_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "GIVE_UP_S", -1.0)
    service = ServiceConnection("http://127.0.0.1:9")
    with pytest.raises(ServiceUnreachable, match="moeplan jobs watch j follows it again"):
        list(follow(service, "j"))
