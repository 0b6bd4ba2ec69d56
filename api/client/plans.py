"""Plans of a service: having one made there, and fetching those that are."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from api.client.connection import ServiceConnection
from api.client.events import finished
from api.client.traces import upload
from api.plan_request import PlanRequest
from placement.errors import BadOption
from placement.hardware import HardwareProfile
from placement.pareto import MovePoint
from placement.plan import Plan
from profiler.formats import read_layout
from profiler.hardware import hardware_names, read_hardware
from profiler.json_file import parse_json, read_json
from profiler.model_file import read_model_config
from profiler.plan_file import plan_from_document

SENT_OTHERWISE = ("topology_file", "current", "test", "hardware", "workers")
"""Fields of a request that are sent in another form, or not: who searches is the service's own business."""

UPLOAD_SHARE = 0.1
"""Of the progress bar, for reading the recordings there."""


def plan_there(
    service: ServiceConnection,
    inputs: Sequence[Path],
    request: PlanRequest,
    *,
    read: Mapping[str, Any],
    engine_id: str | None = None,
    progress: Callable[[float], None] | None = None,
    on_stored: Callable[[str], None] = lambda plan_id: None,
) -> Plan:
    """Have a plan made by the service and return it, checked as if it had been read from a file.

    Parameters
    ----------
    inputs
        Files, folders, and ids of stored traces.
    read
        How files are read; see :func:`api.client.traces.upload`.
    engine_id
        The engine that it is for.
    on_stored
        Called with the id under which the service keeps it.
    """
    reading = None if progress is None else lambda done: progress(UPLOAD_SHARE * done)
    traces = [trace["id"] for trace in upload(service, inputs, read=read, engine_id=None, progress=reading)]
    tests = [trace["id"] for trace in upload(service, request.test, read=read)] if request.test else []
    body = {**plan_body(request, model=read.get("model")), "trace_ids": traces, "engine_id": engine_id}
    if tests:
        body["test_trace_ids"] = tests
    asked = service.post("/v1/plans", body, once=secrets.token_hex(16)).json
    solving = None if progress is None else lambda done: progress(UPLOAD_SHARE + (1 - UPLOAD_SHARE) * done)
    job = finished(service, asked["job_id"], progress=solving)
    made = _as_made(stored_plan(service, asked["id"]), job["result"] or {})
    on_stored(asked["id"])
    return made


def plan_body(request: PlanRequest, *, model: Path | None) -> dict[str, Any]:
    """Return what is sent for a request: everything that is not as usual, files by what they hold."""
    usual = {field.name: field.default for field in fields(request)}
    body: dict[str, Any] = {}
    for name, default in usual.items():
        value = getattr(request, name)
        if name not in SENT_OTHERWISE and value != default:
            body[name] = value
    if model is not None:
        body["model"] = read_model_config(model)
    if request.topology_file is not None:
        body["costs"] = read_json(request.topology_file)
    if request.current is not None:
        layout, _ = read_layout(request.current, gpus=request.gpus)
        body["current"] = {"physical_to_logical_map": layout.slot_to_expert_LP.tolist()}
    if request.hardware is not None:
        body["hardware"] = _hardware(request.hardware)
    if request.workers != 1:
        raise BadOption("--workers is for plans made here; a service has workers of its own.")
    return body


def stored_plan(service: ServiceConnection, plan_id: str) -> Plan:
    """Fetch a plan and check it."""
    return plan_from_document(parse_json(plan_text(service, plan_id), name=plan_id), name=f"plan {plan_id}")


def plan_text(service: ServiceConnection, plan_id: str) -> str:
    """Fetch ``PLAN.json`` as it is stored."""
    return service.read(f"/v1/plans/{plan_id}/file").decode("utf-8", errors="replace")


def _hardware(given: str | HardwareProfile) -> str | dict[str, Any]:
    if isinstance(given, str) and given in hardware_names() and not Path(given).is_file():
        return given
    return (read_hardware(given) if isinstance(given, str) else given).to_dict()


def _as_made(plan: Plan, result: Mapping[str, Any]) -> Plan:
    """Add what is printed of a plan and not stored in its file."""
    points = tuple(MovePoint(**point) for point in result.get("pareto", []))
    return replace(plan, solve_seconds=result.get("solve_seconds"), pareto=points)
