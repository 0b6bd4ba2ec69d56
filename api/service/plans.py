"""Plans: asking for them, judging them, deciding about them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from api.errors import BadRequest, WrongState
from api.plan_request import PlanRequest
from api.service import jobs
from api.service.context import Service
from api.service.engines import topology_of
from api.service.traces import require_ready
from api.states import JobKind, PlanState
from api.store import plans, traces
from api.store.audit import Actor, change_state, record
from api.store.columns import now
from api.store.database import Session
from api.store.identifiers import new_id
from api.store.models import Engine, Job, Plan, PlanTrace
from placement.diff import LayoutDiff, diff
from placement.dispatch import Dispatch
from placement.layout import Layout
from placement.plan import Plan as MadePlan
from placement.problem import LocalScope, Objective
from placement.topology import from_cost_matrix
from profiler.formats import EXPORTERS, export_layout
from profiler.plan_file import plan_from_document

KINDS: Mapping[str, Any] = {"objective": Objective, "local_scope": LocalScope, "dispatch": Dispatch}


def ask(
    service: Service,
    session: Session,
    actor: Actor,
    *,
    name: str,
    engine: Engine | None,
    trace_ids: Sequence[str],
    options: Mapping[str, Any],
) -> tuple[Plan, Job]:
    """Queue a plan from recordings; what is not given is taken from the engine.

    Parameters
    ----------
    options
        Fields of :class:`api.plan_request.PlanRequest` that are given, and ``costs`` (a cost matrix).

    Raises
    ------
    NotFound, WrongState
        A recording is not there, or not ready.
    BadRequest
        The shape of the GPUs is not known.
    InvalidInput
        The options contradict each other, as on the command line.
    """
    if not trace_ids or len(set(trace_ids)) != len(trace_ids):
        raise BadRequest("give at least one trace, and none twice: its traffic would count double.")
    for trace_id in trace_ids:
        require_ready(traces.find(session, trace_id))
    asked = _completed(engine, options)
    _require_valid(asked)
    plan = Plan(
        id=new_id("pln"),
        name=name,
        state=PlanState.WAITING,
        engine_id=None if engine is None else engine.id,
        request=asked,
        created_by=actor.who,
        created_at=now(),
        version=1,
    )
    session.add(plan)
    session.flush()
    for position, trace_id in enumerate(trace_ids):
        session.add(PlanTrace(plan_id=plan.id, trace_id=trace_id, position=position))
    record(session, actor, "plan.asked", plan, traces=list(trace_ids))
    job = jobs.begin(
        service, session, actor, kind=JobKind.PLAN, subject_id=plan.id, engine_id=None if engine is None else engine.id
    )
    plan.job_id = job.id
    return plan, job


def decide(session: Session, actor: Actor, plan: Plan, state: PlanState, *, why: str) -> None:
    """Approve or reject a plan. Raises :class:`WrongState`."""
    change_state(session, plan, state, actor, why=why)


def made(service: Service, plan: Plan) -> MadePlan:
    """Return a plan as it was stored, checked.

    Raises
    ------
    WrongState
        It is not made yet, or never will be.
    """
    return plan_from_document(json.loads(content(service, plan)), name=f"plan {plan.id}")


def content(service: Service, plan: Plan) -> bytes:
    """Return the bytes of a plan's file, ``PLAN.json``. Raises :class:`WrongState`."""
    if plan.sha256 is None:
        raise WrongState(f"the plan {plan.id} is {plan.state}: {plan.state.sentence}")
    return service.files.read(plan.sha256)


def comparison(service: Service, plan: Plan) -> bytes:
    """Return what ``moeplan compare --json`` prints of a plan. Raises :class:`WrongState`."""
    return json.dumps(made(service, plan).summary(), separators=(",", ":"), allow_nan=False).encode()


def current_layout(service: Service, plan: Plan) -> Layout:
    """Return the layout that the engine ran when it was planned for. Raises :class:`WrongState`."""
    if plan.current_sha256 is None:
        raise WrongState(f"the plan {plan.id} was made for no engine, so there is no running layout to compare with.")
    rows = json.loads(service.files.read(plan.current_sha256))["physical_to_logical_map"]
    shape = made(service, plan)
    return Layout(rows, gpus=shape.topology.gpus, experts=shape.model.experts)


def difference(service: Service, session: Session, plan: Plan, *, against: str) -> LayoutDiff:
    """Compare a plan's layout with the running one (``current``) or with another plan's."""
    after = made(service, plan)
    if against == "current":
        before = current_layout(service, plan)
    else:
        before = made(service, plans.find(session, against)).layout
    return diff(before, after.layout, after.topology, expert_bytes=plan.request.get("expert_bytes"))


def exported(service: Service, plan: Plan, *, format: str) -> bytes:
    """Return the file that an engine loads at start. Raises as :func:`export_layout`."""
    with tempfile.TemporaryDirectory(prefix="moeplan-export-") as folder:
        suffix = EXPORTERS[format].suffix if format in EXPORTERS else ".json"
        out = Path(folder) / f"layout{suffix}"
        export_layout(made(service, plan).layout, format=format, out=out)
        return out.read_bytes()


def _completed(engine: Engine | None, options: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: value for name, value in options.items() if value is not None}
    if engine is not None and engine.facts is not None:
        topology = topology_of(engine)
        if topology is not None and "gpus" not in asked:
            asked["gpus"] = topology.gpus
            if engine.costs is not None:
                asked.setdefault("costs", engine.costs)
            else:
                asked.setdefault("nodes", topology.nodes)
        if not {"slots_per_gpu", "redundant", "fit"} & set(asked):
            asked["slots_per_gpu"] = engine.facts["slots_per_gpu"]
        if "dispatch" not in asked:
            asked["dispatch"] = str(_dispatch_of(engine.facts))
    if "gpus" not in asked:
        raise BadRequest(
            "how many GPUs is not known: give gpus, or an engine that has been read (POST /v1/engines/ID/read)."
        )
    return asked


def _dispatch_of(facts: Mapping[str, Any]) -> Dispatch:
    if facts["a2a_backend"] == "none":
        return Dispatch.EVEN
    return Dispatch.NEAREST_STATIC if facts["dispatch"] == "static" else Dispatch.NEAREST_DYNAMIC


def _require_valid(asked: Mapping[str, Any]) -> None:
    """Refuse now what the job would refuse later."""
    values = {name: KINDS[name](value) if name in KINDS else value for name, value in asked.items() if name != "costs"}
    PlanRequest(**values)
    if asked.get("costs") is not None:
        from_cost_matrix(asked["costs"], gpus=asked["gpus"])
