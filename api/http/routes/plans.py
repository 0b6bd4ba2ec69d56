"""``/v1/plans``."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from api.http.edge import Admin, Answer, Edge, IdempotencyKey, IfMatch, IfNoneMatch, Pages, Reader, etag
from api.http.problems import documented
from api.http.schemas.common import PageOut, ReasonIn
from api.http.schemas.plans import PlanIn, PlanOut
from api.report import render_report
from api.service import plans as plan_service
from api.service.heat import HeatCache
from api.states import PlanState
from api.store import engines, plans
from api.store.database import Session

router = APIRouter(prefix="/plans", tags=["plans"])
JSON_OBJECT: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"schema": {"type": "object"}}}}}
FILE_KINDS = {".json": "application/json", ".jsonl": "application/jsonl", ".yaml": "application/yaml"}
"""Media types of engines' files, by suffix."""

_TYPES = {"application/json": "object"}

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
"""The page has its styles in itself, no script, and loads nothing."""

KNOWN: dict[int | str, dict[str, Any]] = {304: {"description": "Known."}}


@router.get("", response_model=PageOut[PlanOut])
def list_plans(
    edge: Reader, pages: Pages, engine_id: Annotated[str | None, Query(max_length=40)] = None
) -> PageOut[PlanOut]:
    """List plans, newest first."""
    with edge.service.database.reading() as session:
        page = plans.page(session, pages, engine_id=engine_id)
    return PageOut(items=[PlanOut.of(row) for row in page.rows], next_cursor=page.next_cursor)


@router.post("", status_code=202, response_model=PlanOut, responses=documented(404, 409))
def ask_for_plan(body: PlanIn, edge: Admin, idempotency_key: IdempotencyKey = None) -> Response:
    """Ask for a plan; a job makes it, then it waits for approval. Follow the job named by `Location`."""
    current = None
    if body.current is not None:
        current = plan_service.keep_layout(edge.service, body.current.physical_to_logical_map, gpus=body.gpus)

    def act(session: Session) -> Answer:
        engine = None if body.engine_id is None else engines.find(session, body.engine_id)
        plan, job = plan_service.ask(
            edge.service,
            session,
            edge.actor,
            name=body.name or (engine.name if engine is not None else "plan"),
            engine=engine,
            trace_ids=body.trace_ids,
            options=body.options(),
            current=current,
        )
        session.flush()
        return Answer(202, PlanOut.of(plan), {"Location": f"/v1/jobs/{job.id}", "ETag": etag(plan.version)})

    return edge.once(body.model_dump(mode="json"), act)


@router.get("/{plan_id}", response_model=PlanOut, responses=documented(404) | KNOWN)
def get_plan(plan_id: str, edge: Reader, if_none_match: IfNoneMatch = None) -> Response:
    """Show a plan and its figures."""
    with edge.service.database.reading() as session:
        plan = plans.find(session, plan_id)
    return edge.read(PlanOut.of(plan), tag=etag(plan.version))


@router.get("/{plan_id}/file", responses=documented(404, 409) | JSON_OBJECT | KNOWN, response_class=Response)
def get_plan_file(plan_id: str, edge: Reader, if_none_match: IfNoneMatch = None) -> Response:
    """Download PLAN.json: the layout, and all metrics beside the bound, the baselines and the running layout."""
    with edge.service.database.reading() as session:
        plan = plans.find(session, plan_id)
    cache: HeatCache = edge.request.app.state.heat
    content = cache.get(f"plan {plan.sha256}", lambda: plan_service.content(edge.service, plan))
    return edge.content(content, media_type="application/json", tag=f'"{plan.sha256}"', file_name=f"{plan.id}.json")


@router.get("/{plan_id}/comparison", responses=documented(404, 409) | JSON_OBJECT | KNOWN, response_class=Response)
def get_comparison(plan_id: str, edge: Reader, if_none_match: IfNoneMatch = None) -> Response:
    """Compare a plan with the baselines and the running layout: what `moeplan compare --json` prints."""
    with edge.service.database.reading() as session:
        plan = plans.find(session, plan_id)
    content = plan_service.comparison(edge.service, plan)
    return edge.content(content, media_type="application/json", tag=f'"{plan.sha256}-comparison"')


@router.get(
    "/{plan_id}/report",
    response_class=HTMLResponse,
    responses=documented(404, 409) | {200: {"content": {"text/html": {}}, "description": "The page."}},
)
def get_report(plan_id: str, edge: Reader) -> Response:
    """Show a plan as one self-contained page."""
    with edge.service.database.reading() as session:
        plan = plans.find(session, plan_id)
    page = render_report(plan_service.made(edge.service, plan))
    return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})


@router.get(
    "/{plan_id}/export",
    responses=documented(404, 409)
    | KNOWN
    | {200: {"content": {kind: {"schema": {"type": _TYPES.get(kind, "string")}} for kind in FILE_KINDS.values()}}},
    response_class=Response,
)
def export_plan(
    plan_id: str,
    edge: Reader,
    format: Annotated[str, Query(max_length=40, description="As `moeplan export --format`.")] = "sglang",
    model: Annotated[
        str | None,
        Query(max_length=80, description="A model by name, where the plan was made without; sglang needs none."),
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Download the file that an engine loads at start."""
    with edge.service.database.reading() as session:
        plan = plans.find(session, plan_id)
    content, suffix = plan_service.exported(edge.service, plan, format=format, model=model)
    tag = hashlib.sha256(content).hexdigest()[:32]
    return edge.content(content, media_type=FILE_KINDS[suffix], tag=f'"{tag}"', file_name=f"{plan.id}{suffix}")


@router.get("/{plan_id}/diff", responses=documented(404, 409, 502) | JSON_OBJECT)
def diff_plan(
    plan_id: str,
    edge: Reader,
    against: Annotated[
        str,
        Query(
            max_length=40,
            description="`current`: the layout that ran when it was planned; `running`: what an engine runs now; or a "
            "plan's id.",
        ),
    ] = "current",
    engine_id: Annotated[
        str | None, Query(max_length=40, description="For `running`: another engine than the plan's own.")
    ] = None,
) -> dict[str, Any]:
    """Say which slots move between another layout and a plan's."""
    with edge.service.database.reading() as session:
        plan = plans.find(session, plan_id)
    asked = str(engine_id or plan.engine_id) if against == "running" else None
    with nullcontext() if asked is None else edge.waiting_for(asked):
        return plan_service.difference(edge.service, plan, against=against, engine_id=engine_id).to_dict()


@router.post("/{plan_id}/approve", response_model=PlanOut, responses=documented(404, 409, 412))
def approve_plan(plan_id: str, edge: Admin, body: ReasonIn | None = None, if_match: IfMatch = None) -> Response:
    """Let a plan be pushed."""
    return _decide(edge, plan_id, PlanState.APPROVED, body)


@router.post("/{plan_id}/reject", response_model=PlanOut, responses=documented(404, 409, 412))
def reject_plan(plan_id: str, edge: Admin, body: ReasonIn | None = None, if_match: IfMatch = None) -> Response:
    """Decide against a plan, also one that was approved."""
    return _decide(edge, plan_id, PlanState.REJECTED, body)


def _decide(edge: Edge, plan_id: str, state: PlanState, body: ReasonIn | None) -> Response:
    def act(session: Session) -> Answer:
        plan = plans.find(session, plan_id)
        edge.require_version_if_given(plan.version)
        plan_service.decide(session, edge.actor, plan, state, why=body.reason if body else "")
        return Answer(200, PlanOut.of(plan), {"ETag": etag(plan.version)})

    return edge.change(act)
