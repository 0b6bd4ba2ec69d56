"""``/healthz``, ``/readyz`` and ``/metrics``: open to all, and saying nothing that is secret."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter, Request, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from api.http.edge import the_service
from api.http.problems import documented
from api.store import jobs, schedules

router = APIRouter(tags=["health"])

ALIVE = timedelta(seconds=30)


class Healthy(BaseModel):
    """The process answers."""

    status: str = Field(default="ok", examples=["ok"])


class Ready(BaseModel):
    """The service can do what it is there for."""

    status: str = Field(default="ok", examples=["ok"])
    workers: int = Field(description="Workers seen in the last half minute; without one, jobs wait.")


@router.get("/healthz", response_model=Healthy)
def healthz() -> Healthy:
    """Say whether the process answers."""
    return Healthy()


@router.get("/readyz", response_model=Ready, responses=documented(503))
def readyz(request: Request) -> Ready:
    """Say whether the database answers, and how many workers there are."""
    with the_service(request).database.reading() as session:
        at = schedules.clock(session)
        alive = [worker for worker in jobs.workers(session) if at - worker.seen_at < ALIVE]
    return Ready(workers=len(alive))


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus metrics."}},
)
def metrics(request: Request) -> Response:
    """Show the metrics."""
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE_LATEST)
