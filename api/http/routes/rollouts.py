"""``/v1/rollouts``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.http.edge import Admin, Answer, IdempotencyKey, IfNoneMatch, Pages, Reader, etag
from api.http.problems import documented
from api.http.schemas.common import PageOut, ReasonIn
from api.http.schemas.plans import RolloutIn, RolloutOut
from api.service import rollouts as rollout_service
from api.service.rollouts import Measuring
from api.store import engines, plans
from api.store.database import Session
from api.store.models import Job, Rollout

router = APIRouter(prefix="/rollouts", tags=["rollouts"])


@router.get("", response_model=PageOut[RolloutOut])
def list_rollouts(
    edge: Reader, pages: Pages, engine_id: Annotated[str | None, Query(max_length=40)] = None
) -> PageOut[RolloutOut]:
    """List rollouts, newest first."""
    with edge.service.database.reading() as session:
        page = plans.rollouts(session, pages, engine_id=engine_id)
    return PageOut(items=[RolloutOut.of(row) for row in page.rows], next_cursor=page.next_cursor)


@router.post("", status_code=202, response_model=RolloutOut, responses=documented(404, 409))
def begin_rollout(body: RolloutIn, edge: Admin, idempotency_key: IdempotencyKey = None) -> Response:
    """Bring an approved plan into its engine, verify it by reading the engine, and measure it on the engine's traffic.

    It is taken back by itself when the check after the push fails or when it is measured to be worse than the layout
    before. Follow the job in `Location`.
    """

    def act(session: Session) -> Answer:
        rollout, job = rollout_service.begin(
            edge.service,
            session,
            edge.actor,
            plan=plans.find(session, body.plan_id),
            engine=None if body.engine_id is None else engines.find(session, body.engine_id),
            pace=body.model_dump(include={"layers_per_chunk", "pause_s"}),
            measuring=Measuring(seconds=body.measure_seconds, margin=body.roll_back_margin),
            reason=body.reason,
        )
        return _accepted(session, rollout, job)

    return edge.once(body.model_dump(mode="json"), act)


@router.get("/{rollout_id}", response_model=RolloutOut, responses=documented(404) | {304: {"description": "Known."}})
def get_rollout(rollout_id: str, edge: Reader, if_none_match: IfNoneMatch = None) -> Response:
    """Show how far a rollout is, and what the engine said."""
    with edge.service.database.reading() as session:
        rollout = plans.find_rollout(session, rollout_id)
    return edge.read(RolloutOut.of(rollout), tag=etag(rollout.version))


@router.post("/{rollout_id}/rollback", status_code=202, response_model=RolloutOut, responses=documented(404, 409))
def take_back(
    rollout_id: str, edge: Admin, body: ReasonIn | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Put back the layout that a rollout replaced; also mends one that stopped half way."""

    def act(session: Session) -> Answer:
        rollout, job = rollout_service.take_back(
            edge.service,
            session,
            edge.actor,
            rollout=plans.find_rollout(session, rollout_id),
            reason=body.reason if body else "",
        )
        return _accepted(session, rollout, job)

    return edge.once({"reason": body.reason if body else ""}, act)


def _accepted(session: Session, rollout: Rollout, job: Job) -> Answer:
    session.flush()
    return Answer(202, RolloutOut.of(rollout), {"Location": f"/v1/jobs/{job.id}", "ETag": etag(rollout.version)})
