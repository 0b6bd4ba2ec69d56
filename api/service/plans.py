"""Plans: asking for them, judging them, deciding about them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from api.errors import BadRequest, WrongState
from api.service import jobs
from api.service.context import Service
from api.service.engine_access import engine_client, with_retries
from api.service.engines import dispatch_of, topology_of
from api.service.plan_options import read_options_of, require_valid
from api.service.traces import require_ready
from api.states import JobKind, PlanState
from api.store import engines, plans, traces
from api.store.audit import Actor, change_state, record
from api.store.columns import now
from api.store.database import Session
from api.store.files import StoredFile
from api.store.identifiers import new_id
from api.store.models import Engine, Job, Plan, PlanTrace
from placement.diff import LayoutDiff, diff
from placement.layout import Layout
from placement.plan import Plan as MadePlan
from profiler.formats import EXPORTERS, export_layout
from profiler.plan_file import plan_from_document


@dataclass(frozen=True)
class StoredLayout:
    """A layout as a stored file."""

    sha256: str
    layout_hash: str


def keep_layout(service: Service, rows: Sequence[Sequence[int]], *, gpus: int | None) -> StoredLayout:
    """Store a layout that was sent.

    Raises
    ------
    BadRequest
        For how many GPUs it is, is not known.
    BadMapShape, ExpertIdRange, SlotsNotDivisible, ...
        It is none.
    """
    if gpus is None:
        raise BadRequest("current needs gpus: for how many GPUs the layout is.")
    layout = Layout(np.asarray(rows, dtype=np.int32), gpus=gpus, experts=1 + max(map(max, rows)))
    return StoredLayout(stored_map(service, layout.slot_to_expert_LP).sha256, layout.hash)


def stored_map(service: Service, map_LP: npt.NDArray[np.int32]) -> StoredFile:
    """Store a map as SGLang writes it."""
    document = {"physical_to_logical_map": map_LP.tolist()}
    return service.files.put_bytes(json.dumps(document, separators=(",", ":")).encode())


def ask(
    service: Service,
    session: Session,
    actor: Actor,
    *,
    name: str,
    engine: Engine | None,
    trace_ids: Sequence[str],
    options: Mapping[str, Any],
    current: StoredLayout | None = None,
) -> tuple[Plan, Job]:
    """Queue a plan from recordings; what is not given is taken from the engine.

    Parameters
    ----------
    options
        Fields of :class:`api.plan_request.PlanRequest` that are given, ``costs`` (a cost matrix), ``model`` (a name, or
        a config.json as an object) and ``test_trace_ids`` (recordings to judge on).
    current
        The layout that runs now, where no engine is asked for it.

    Raises
    ------
    NotFound, WrongState
        A recording is not there, or not ready.
    BadRequest
        The shape of the GPUs is not known.
    InvalidInput
        The options contradict each other, as on the command line.
    """
    plan = expected(session, actor, name=name, engine=engine, trace_ids=trace_ids, options=options, current=current)
    job = jobs.begin(
        service, session, actor, kind=JobKind.PLAN, subject_id=plan.id, engine_id=None if engine is None else engine.id
    )
    plan.job_id = job.id
    return plan, job


def expected(
    session: Session,
    actor: Actor,
    *,
    name: str,
    engine: Engine | None,
    trace_ids: Sequence[str],
    options: Mapping[str, Any],
    current: StoredLayout | None = None,
) -> Plan:
    """Write down a plan that a job is about to make. Parameters and errors are those of :func:`ask`."""
    tests = options.get("test_trace_ids") or ()
    if not trace_ids or any(len(set(ids)) != len(ids) for ids in (trace_ids, tests)):
        raise BadRequest("give at least one trace, and none twice: its traffic would count double.")
    if tests and options.get("holdout") is not None:
        raise BadRequest("holdout and test_trace_ids exclude each other; give one.")
    if engine is not None and current is not None:
        raise BadRequest("the engine is asked for the layout that it runs; leave current out.")
    for trace_id in (*trace_ids, *tests):
        require_ready(traces.find(session, trace_id))
    asked = _completed(engine, options)
    require_valid(asked)
    plan = Plan(
        id=new_id("pln"),
        name=name,
        state=PlanState.WAITING,
        engine_id=None if engine is None else engine.id,
        request=asked,
        current_sha256=None if current is None else current.sha256,
        current_hash=None if current is None else current.layout_hash,
        created_by=actor.who,
        created_at=now(),
        version=1,
    )
    session.add(plan)
    session.flush()
    for position, trace_id in enumerate(trace_ids):
        session.add(PlanTrace(plan_id=plan.id, trace_id=trace_id, position=position))
    record(session, actor, "plan.asked", plan, traces=list(trace_ids))
    return plan


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


def difference(service: Service, plan: Plan, *, against: str, engine_id: str | None = None) -> LayoutDiff:
    """Compare a plan's layout with another one.

    Parameters
    ----------
    against
        ``current``: the layout that ran when it was planned; ``running``: the one that an engine runs now; else the id
        of another plan.
    engine_id
        For ``running``; the plan's own engine by default.

    Raises
    ------
    WrongState, NotFound, EngineError
    """
    after = made(service, plan)
    expert_bytes = plan.request.get("expert_bytes")
    if against == "current":
        before = current_layout(service, plan)
    elif against == "running":
        before, known_bytes = _running_layout(service, plan, engine_id)
        expert_bytes = expert_bytes or known_bytes
    else:
        with service.database.reading() as session:
            other = plans.find(session, against)
        before = made(service, other).layout
    return diff(before, after.layout, after.topology, expert_bytes=expert_bytes)


def exported(service: Service, plan: Plan, *, format: str, model: str | None = None) -> tuple[bytes, str]:
    """Return the file that an engine loads at start, and its suffix; ``model`` is needed by all formats but sglang.

    Raises
    ------
    BadRequest, ExportFormatUnknown, ExportNeedsModel, WrongState
    """
    shape = read_options_of({"model": model or plan.request.get("model")}).model
    with tempfile.TemporaryDirectory(prefix="moeplan-export-") as folder:
        suffix = EXPORTERS[format].suffix if format in EXPORTERS else ".json"
        out = Path(folder) / f"layout{suffix}"
        export_layout(made(service, plan).layout, format=format, out=out, model=shape)
        return out.read_bytes(), suffix


def _running_layout(service: Service, plan: Plan, engine_id: str | None) -> tuple[Layout, int | None]:
    asked = engine_id or plan.engine_id
    if asked is None:
        raise WrongState(f"the plan {plan.id} was made for no engine, so there is none to ask what it runs.")
    with service.database.reading() as session:
        engine = engines.find(session, asked)
    with engine_client(service, engine) as client:
        placement = with_retries(client.placement)
    layout = Layout(placement.map_LP, gpus=placement.ep_size, experts=placement.experts)
    return layout, placement.expert_bytes or None


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
            rule = dispatch_of(dispatch=engine.facts["dispatch"], a2a_backend=engine.facts["a2a_backend"])
            asked["dispatch"] = str(rule)
    if "gpus" not in asked:
        raise BadRequest(
            "how many GPUs is not known: give gpus, or an engine that has been read (POST /v1/engines/ID/read)."
        )
    return asked
