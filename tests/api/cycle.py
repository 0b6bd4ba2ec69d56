"""A service as a process and a rebalancing by hand through its REST API, everything that it answers kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.api.cli.test_service_commands import serving
from tests.api.services import wait_for

ENDED = ("succeeded", "failed", "cancelled")


@dataclass
class Served:
    """A running service and what it has said.

    Attributes
    ----------
    url : str
    folder : Path
        Holds ``data`` and ``serve.log``.
    process_id : int
    client : httpx.Client
        With the key that was given.
    answers : list of (request, text)
        Every answer, its headers included.
    """

    url: str
    folder: Path
    process_id: int
    client: httpx.Client
    answers: list[tuple[str, str]] = field(default_factory=list)

    @property
    def log(self) -> str:
        return (self.folder / "serve.log").read_text()

    def keep(self, response: httpx.Response) -> None:
        """Keep an answer."""
        response.read()
        asked = f"{response.request.method} {response.request.url.path}"
        self.answers.append((asked, f"{response.headers}\n{response.text}"))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def post(self, path: str, body: Any = None, *, status: int = 202) -> dict[str, Any]:
        """Send a body and return what was answered, with the location as ``job``."""
        answered = self.client.post(path, json=body)
        assert answered.status_code == status, answered.text
        return {**answered.json(), "job": answered.headers.get("location", "")}

    def ended(self, made: dict[str, Any]) -> dict[str, Any]:
        """Wait for the job that a request began."""
        job: dict[str, Any] = wait_for(
            lambda: found if (found := self.get(made["job"]).json())["state"] in ENDED else None, what=made["job"]
        )
        return job

    def done(self, made: dict[str, Any]) -> dict[str, Any]:
        job = self.ended(made)
        assert job["state"] == "succeeded", job
        return made


@contextmanager
def served(folder: Path, *arguments: str, key: str | None = None, **variables: str) -> Iterator[Served]:
    """Run ``moeplan serve`` with one worker until the block ends."""
    if key is not None:
        variables["MOEPLAN_ADMIN_API_KEY"] = key
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with (
        serving(folder, *arguments, **variables) as (process, url, _),
        httpx.Client(base_url=url, headers=headers, timeout=60.0) as client,
    ):
        service = Served(url, folder, process.pid, client)
        client.event_hooks = {"response": [service.keep]}
        wait_for(lambda: service.get("/readyz").json()["workers"] >= 1, what="a worker")
        yield service


def rebalance(service: Served, engine_id: str) -> dict[str, str]:
    """Record, plan, approve and roll out; return the ids."""
    trace = service.done(service.post("/v1/traces/capture", {"engine_id": engine_id, "steps": 60, "window_steps": 20}))
    plan = service.done(service.post("/v1/plans", {"trace_ids": [trace["id"]], "engine_id": engine_id}))
    service.post(f"/v1/plans/{plan['id']}/approve", {"reason": "looked at"}, status=200)
    rollout = service.done(service.post("/v1/rollouts", {"plan_id": plan["id"], "measure_seconds": 1.0}))
    return {"trace_id": trace["id"], "plan_id": plan["id"], "rollout_id": rollout["id"]}
