"""``/v1/traces``, with their heat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from api.http.edge import Admin, Answer, Edge, IdempotencyKey, IfMatch, IfNoneMatch, Pages, Reader, etag
from api.http.problems import documented
from api.http.schemas.common import PageOut, ReasonIn
from api.http.schemas.traces import CaptureIn, TraceChange, TraceOut
from api.http.uploads import Upload, take_in
from api.service import heat as heat_service
from api.service import traces as trace_service
from api.store import engines, plans, traces
from api.store.database import Session
from api.store.models import Job, Trace

router = APIRouter(prefix="/traces", tags=["traces"])
PARQUET = "application/vnd.apache.parquet"
UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                            "description": "The files of one recording, in any format that `moeplan plan` reads.",
                        },
                        "name": {"type": "string", "maxLength": 200},
                        "engine_id": {"type": "string", "description": "The engine it was recorded on."},
                        "model": {"type": "string", "description": "The model's config.json, as JSON."},
                        "experts": {"type": "integer", "minimum": 1},
                        "ranks": {"type": "integer", "minimum": 1},
                        "allow_partial": {"type": "boolean"},
                        "map_history": {
                            "type": "string",
                            "description": "Layouts that ran while recording, as JSON: a list of {from_pass, "
                            "physical_to_logical_map}.",
                        },
                    },
                },
            }
        },
    }
}


@router.get("", response_model=PageOut[TraceOut])
def list_traces(
    edge: Reader, pages: Pages, engine_id: Annotated[str | None, Query(max_length=40)] = None
) -> PageOut[TraceOut]:
    """List recordings, newest first."""
    with edge.service.database.reading() as session:
        page = traces.page(session, pages, engine_id=engine_id)
    return PageOut(items=[TraceOut.of(row) for row in page.rows], next_cursor=page.next_cursor)


@router.post(
    "", status_code=202, response_model=TraceOut, responses=documented(400, 404, 409), openapi_extra=UPLOAD_BODY
)
async def upload_trace(request: Request, edge: Admin, idempotency_key: IdempotencyKey = None) -> Response:
    """Upload a recording; a job reads it. Follow the job named by `Location`."""
    upload = await take_in(request, edge.service)
    return await run_in_threadpool(_taken, edge, upload)


def _taken(edge: Edge, upload: Upload) -> Response:
    def act(session: Session) -> Answer:
        fields = upload.fields
        engine = None if fields.engine_id is None else engines.find(session, fields.engine_id)
        trace, job = trace_service.upload(
            edge.service,
            session,
            edge.actor,
            name=fields.name or next(iter(upload.files), "upload"),
            engine=engine,
            files=upload.files,
            read=fields.read_options(),
        )
        return _accepted(session, trace, job)

    return edge.once(upload.told(), act)


@router.post("/capture", status_code=202, response_model=TraceOut, responses=documented(404, 409))
def capture_trace(body: CaptureIn, edge: Admin, idempotency_key: IdempotencyKey = None) -> Response:
    """Record from a live engine, by home GPU; a job does it. Follow the job named by `Location`."""

    def act(session: Session) -> Answer:
        engine = engines.find(session, body.engine_id)
        trace, job = trace_service.capture(
            edge.service,
            session,
            edge.actor,
            name=body.name or engine.name,
            engine=engine,
            limits=body.model_dump(include={"steps", "seconds", "window_steps", "window_seconds"}),
        )
        return _accepted(session, trace, job)

    return edge.once(body.model_dump(mode="json"), act)


@router.get("/{trace_id}", response_model=TraceOut, responses=documented(404) | {304: {"description": "Known."}})
def get_trace(trace_id: str, edge: Reader, if_none_match: IfNoneMatch = None) -> Response:
    """Show a recording: what it holds, and its warnings."""
    with edge.service.database.reading() as session:
        trace = traces.find(session, trace_id)
    return edge.read(TraceOut.of(trace), tag=etag(trace.version))


@router.get(
    "/{trace_id}/content",
    response_class=FileResponse,
    responses=documented(404, 409) | {200: {"content": {PARQUET: {}}, "description": "The moeplan trace."}},
)
def get_content(trace_id: str, edge: Reader) -> Response:
    """Download a recording as a moeplan trace (Parquet)."""
    with edge.service.database.reading() as session:
        trace = trace_service.require_ready(traces.find(session, trace_id))
    path = edge.service.files.path(str(trace.sha256))
    return FileResponse(path, media_type=PARQUET, filename=f"{trace.id}.parquet")


@router.get(
    "/{trace_id}/heat",
    responses=documented(404, 409)
    | {
        200: {
            "description": "The matrix.",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/csv": {"schema": {"type": "string"}},
                "application/vnd.apache.arrow.file": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        304: {"description": "Known."},
    },
    response_class=Response,
)
def get_heat(
    trace_id: str,
    edge: Reader,
    axis: Annotated[
        heat_service.Axis, Query(description="experts: routed tokens. gpus: load under the layout of plan_id.")
    ] = "experts",
    window: Annotated[str | None, Query(max_length=200, description="All together by default.")] = None,
    plan_id: Annotated[str | None, Query(max_length=40)] = None,
    format: heat_service.Format = "json",
    phase: Annotated[Literal["prefill", "decode"] | None, Query(description="Traffic of one phase alone.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Show the heat of a recording: layers x experts, or layers x GPUs."""
    with edge.service.database.reading() as session:
        trace = trace_service.require_ready(traces.find(session, trace_id))
        plan = None if plan_id is None else plans.find(session, plan_id)
    asked = heat_service.HeatAsked(axis, window, format, phase)
    key = f"{trace.sha256} {'' if plan is None else plan.sha256} {asked}"
    cache: heat_service.HeatCache = edge.request.app.state.heat
    content = cache.get(key, lambda: heat_service.heat(edge.service, trace, plan, asked))
    tag = f'"{heat_service.tag_of(key)}"'
    return edge.compressed(content, media_type=heat_service.MEDIA_TYPES[format], tag=tag)


@router.patch("/{trace_id}", response_model=TraceOut, responses=documented(404, 412, 428))
def change_trace(trace_id: str, body: TraceChange, edge: Admin, if_match: IfMatch = None) -> Response:
    """Rename a recording, or keep it beyond its time of retention."""

    def act(session: Session) -> Answer:
        trace = traces.find(session, trace_id)
        edge.require_version(trace.version)
        trace_service.change(session, edge.actor, trace, body.model_dump(exclude_none=True))
        return Answer(200, TraceOut.of(trace), {"ETag": etag(trace.version)})

    return edge.change(act)


@router.delete("/{trace_id}", status_code=204, responses=documented(404, 409))
def remove_trace(trace_id: str, edge: Admin, body: ReasonIn | None = None) -> Response:
    """Remove a recording's data now."""

    def act(session: Session) -> Answer:
        trace_service.remove(session, edge.actor, traces.find(session, trace_id), why=body.reason if body else "")
        return Answer(204)

    return edge.change(act)


def _accepted(session: Session, trace: Trace, job: Job) -> Answer:
    session.flush()
    return Answer(202, TraceOut.of(trace), {"Location": f"/v1/jobs/{job.id}", "ETag": etag(trace.version)})
