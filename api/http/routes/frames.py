"""What the pages draw of a recording: its heat as frames, its experts, its traffic."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from api.errors import WrongState
from api.http.edge import Admin, Answer, IdempotencyKey, IfNoneMatch, Reader
from api.http.problems import documented
from api.http.schemas.jobs import JobOut
from api.service import frames as frame_service
from api.service.co_activation import co_activation_order
from api.service.expert_detail import expert_detail
from api.service.frames import FramesAsked, FramesCache
from api.service.heat import HeatCache, tag_of
from api.service.slot_sizes import SizesAsked, begin_planning, planned_sizes, slot_sizes
from api.service.traces import require_ready
from api.service.traffic import traffic
from api.store import plans, traces
from api.store.database import Session

router = APIRouter(prefix="/traces", tags=["traces"])

ANSWERS: dict[int | str, dict[str, Any]] = documented(404, 409) | {304: {"description": "Known."}}
JSON_OBJECT: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"schema": {"type": "object"}}}}}
FRAME_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A frame file: `MOEHEAT1`, the length of a JSON header, the header, uint32 or float64 values.",
        "content": {frame_service.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}
PhaseQuery = Annotated[frame_service.PhaseAsked | None, Query(description="Traffic of one phase alone.")]
PlanQuery = Annotated[str | None, Query(max_length=40)]
LayoutQuery = Annotated[frame_service.LayoutAsked, Query(description="before: the layout that the plan would replace.")]
LARGEST_INDEX = 2**31 - 1

sizes_router = APIRouter(prefix="/plans", tags=["plans"])


@router.get("/{trace_id}/frames", responses=ANSWERS | FRAME_FILE, response_class=Response)
def get_frames(
    trace_id: str,
    edge: Reader,
    axis: frame_service.Axis = "experts",
    phase: PhaseQuery = None,
    plan_id: PlanQuery = None,
    layout: LayoutQuery = "plan",
    first: Annotated[
        int | None, Query(ge=0, le=LARGEST_INDEX, description="First window; all together by default.")
    ] = None,
    count: Annotated[int, Query(ge=1, le=4096, description="Most windows.")] = 16,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Download windows of a recording's heat as plain numbers, to be drawn or played."""
    with edge.service.database.reading() as session:
        trace = require_ready(traces.find(session, trace_id))
        plan = None if plan_id is None else plans.find(session, plan_id)
    asked = FramesAsked(axis=axis, phase=phase, layout=layout, first=first, count=count)
    cache: FramesCache = edge.request.app.state.frames
    content = frame_service.frames(edge.service, cache, trace, plan, asked)
    tag = f'"{tag_of(frame_service.frames_key(trace, plan, asked))}"'
    return edge.compressed(content, media_type=frame_service.MEDIA_TYPE, tag=tag)


@router.get("/{trace_id}/order", responses=ANSWERS | JSON_OBJECT, response_class=Response)
def get_order(trace_id: str, edge: Reader, phase: PhaseQuery = None, if_none_match: IfNoneMatch = None) -> Response:
    """Order the experts of every layer so that those chosen together are neighbours; needs a token trace."""
    with edge.service.database.reading() as session:
        trace = require_ready(traces.find(session, trace_id))
    key = f"order {trace.sha256} {phase}"
    cache: HeatCache = edge.request.app.state.heat
    content = cache.get(key, lambda: co_activation_order(edge.service, trace, phase))
    return edge.compressed(content, media_type="application/json", tag=f'"{tag_of(key)}"')


@router.get("/{trace_id}/experts/{layer}/{expert}", responses=ANSWERS | JSON_OBJECT, response_class=Response)
def get_expert(
    trace_id: str,
    layer: Annotated[int, Path(ge=0, le=LARGEST_INDEX)],
    expert: Annotated[int, Path(ge=0, le=LARGEST_INDEX)],
    edge: Reader,
    phase: PhaseQuery = None,
    plan_id: PlanQuery = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Show one expert: routed tokens by window and home GPU, and its replicas under a plan and before it."""
    with edge.service.database.reading() as session:
        trace = require_ready(traces.find(session, trace_id))
        plan = None if plan_id is None else plans.find(session, plan_id)
    found = expert_detail(edge.service, trace, plan, layer=layer, expert=expert, phase=phase)
    key = f"expert {trace.sha256} {layer} {expert} {phase} {plan and (plan.sha256, plan.current_sha256)}"
    return edge.compressed(json.dumps(found).encode(), media_type="application/json", tag=f'"{tag_of(key)}"')


@router.get("/{trace_id}/traffic", responses=ANSWERS | JSON_OBJECT, response_class=Response)
def get_traffic(
    trace_id: str,
    edge: Reader,
    plan_id: Annotated[str, Query(max_length=40)],
    layout: LayoutQuery = "plan",
    phase: PhaseQuery = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Show routed tokens from every home GPU to every serving GPU, and from node to node."""
    with edge.service.database.reading() as session:
        trace = require_ready(traces.find(session, trace_id))
        plan = plans.find(session, plan_id)
    key = f"traffic {trace.sha256} {plan.sha256} {plan.current_sha256} {layout} {phase}"
    cache: HeatCache = edge.request.app.state.heat
    content = cache.get(
        key,
        lambda: json.dumps(traffic(edge.service, trace, plan, layout=layout, phase=phase).to_dict()).encode(),
    )
    return edge.compressed(content, media_type="application/json", tag=f'"{tag_of(key)}"')


@sizes_router.get("/{plan_id}/sizes", responses=ANSWERS | JSON_OBJECT, response_class=Response)
def get_sizes(
    plan_id: str,
    edge: Reader,
    model: Annotated[
        str | None,
        Query(max_length=100, description="A model by name, as `moeplan size --model`; for bytes and cache."),
    ] = None,
    gpu_memory_gib: Annotated[float | None, Query(gt=0, le=10_000, allow_inf_nan=False)] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Weigh slots per GPU on a plan's machine: locality of the best plans found, its proven bound, and the cache.

    Plans are there once `POST` had them made; until then rows hold the bound alone.
    """
    asked = SizesAsked(model=model, gpu_memory_gib=gpu_memory_gib)
    with edge.service.database.reading() as session:
        plan = plans.find(session, plan_id)
        trace_id = next(iter(plans.trace_ids(session, plan_id)), None)
        if trace_id is None:
            raise WrongState(f"the plan {plan_id} has no recording to weigh slots with.")
        trace = require_ready(traces.find(session, trace_id))
        planned = planned_sizes(session, plan_id)
    key = f"sizes {plan.sha256} {trace.sha256} {planned and planned.id} {model} {gpu_memory_gib!r}"
    cache: HeatCache = edge.request.app.state.heat
    content = cache.get(key, lambda: json.dumps(slot_sizes(edge.service, plan, trace, planned, asked)).encode())
    return edge.compressed(content, media_type="application/json", tag=f'"{tag_of(key)}"')


@sizes_router.post("/{plan_id}/sizes", status_code=202, response_model=JobOut, responses=documented(404, 409))
def plan_sizes(plan_id: str, edge: Admin, idempotency_key: IdempotencyKey = None) -> Response:
    """Plan for other numbers of slots than the plan has, on its recordings; follow the job named by `Location`."""

    def act(session: Session) -> Answer:
        job = begin_planning(edge.service, session, edge.actor, plans.find(session, plan_id))
        return Answer(202, JobOut.of(job), {"Location": f"/v1/jobs/{job.id}"})

    return edge.change(act)
