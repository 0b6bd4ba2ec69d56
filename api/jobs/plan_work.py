"""The job that makes a plan: read what the engine runs now, solve, keep the plan."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from api.errors import WrongState
from api.jobs.durable import Json
from api.jobs.linked_files import file_name_of
from api.jobs.running import Finish, JobRun
from api.jobs.task_process import run_task
from api.service.engine_access import engine_client, with_retries
from api.service.plans import stored_map
from api.states import PlanState, TraceState
from api.store import engines, plans, traces
from api.store.audit import change_state
from api.store.database import Session
from api.store.files import FileStore
from api.store.models import Trace

SOLVE_GRACE_S = 0.3
"""CP-SAT does not unwind; there is nothing to tidy up either."""


def make_plan(run: JobRun) -> Finish:
    """Solve a plan and put it up for approval."""
    with run.service.database.writing() as session:
        plan = plans.find(session, run.subject_id)
        engine_id = plan.engine_id
        if plan.state is PlanState.WAITING:
            change_state(session, plan, PlanState.SOLVING, run.actor)
    current = run.step("read the engine", lambda: _running_layout(run, engine_id)) if engine_id is not None else {}
    made = run.step("solve", lambda: _solve(run, current))
    return lambda session: _finish(session, run, current, made)


def checkpoint_folder(data_dir: Path, job_id: str) -> Path:
    """Return where a job keeps its finished layers."""
    return data_dir / "checkpoints" / job_id


def _running_layout(run: JobRun, engine_id: str) -> Json:
    run.report(0.0, "reading the engine")
    with run.service.database.reading() as session:
        engine = engines.find(session, engine_id)
    with engine_client(run.service, engine) as client:
        placement = with_retries(client.placement)
    stored = stored_map(run.service, placement.map_LP)
    return {
        "sha256": stored.sha256,
        "layout_hash": placement.layout_hash,
        "expert_bytes": placement.expert_bytes or None,
    }


def _solve(run: JobRun, current: Json) -> Json:
    with tempfile.TemporaryDirectory(prefix="moeplan-job-") as folder:
        out = Path(folder) / "plan.json"
        made = run_task(
            "plan",
            {**plan_request(run, current), "out": str(out)},
            on_progress=run.report,
            on_event=run.tell,
            require_going_on=run.require_not_stopped,
            grace_s=SOLVE_GRACE_S,
        )
        run.write_down()
        stored = run.service.files.put_file(out)
    shutil.rmtree(checkpoint_folder(run.service.settings.data_dir, run.job_id), ignore_errors=True)
    return {**made, **asdict(stored)}


def plan_request(run: JobRun, current: Json) -> Json:
    """Return what :func:`api.jobs.plan_task.run` takes, but where to write the plan."""
    files = run.service.files
    with run.service.database.reading() as session:
        plan = plans.find(session, run.subject_id)
        options = dict(plan.request)
        planned_on = [_ready(session, trace_id) for trace_id in plans.trace_ids(session, plan.id)]
        judged_on = [_ready(session, trace_id) for trace_id in options.get("test_trace_ids", ())]
    costs = options.pop("costs", None)
    if current.get("expert_bytes") is not None:
        options.setdefault("expert_bytes", current["expert_bytes"])
    options["workers"] = run.service.settings.plan_workers
    runs_now = current.get("sha256", plan.current_sha256)
    return {
        "inputs": _named(files, planned_on),
        "tests": _named(files, judged_on),
        "options": options,
        "costs": costs,
        "current": None if runs_now is None else str(files.path(runs_now)),
        "checkpoints": str(checkpoint_folder(run.service.settings.data_dir, run.job_id)),
    }


def _ready(session: Session, trace_id: str) -> Trace:
    trace = traces.find(session, trace_id)
    if trace.state is not TraceState.READY:
        raise WrongState(f"the trace {trace.id} is {trace.state}: {trace.state.sentence}")
    return trace


def _named(files: FileStore, recordings: Sequence[Trace]) -> list[Json]:
    """Name recordings as people did, since plans and messages call them so; equal names get a number."""
    named: dict[str, Path] = {}
    for number, trace in enumerate(recordings, start=1):
        name = file_name_of(trace.name, otherwise=trace.id)
        while name in named:
            name = f"{name}-{number}"
        named[name] = files.require_whole(str(trace.sha256))
    return [{"name": name, "path": str(path)} for name, path in named.items()]


def _finish(session: Session, run: JobRun, current: Json, made: dict[str, Any]) -> Json:
    plan = plans.find(session, run.subject_id)
    for field in ("sha256", "layout_hash", "status", "local_gpu", "imbalance", "gap", "moved_slots", "solve_seconds"):
        setattr(plan, field, made[field])
    if current:
        plan.current_hash, plan.current_sha256 = current["layout_hash"], current["sha256"]
    change_state(session, plan, PlanState.PROPOSED, run.actor, why=f"solved: {plan.status}", sha256=plan.sha256)
    shown = {"solve_seconds": plan.solve_seconds, **({"pareto": made["pareto"]} if made["pareto"] else {})}
    return {"plan_id": plan.id, "status": plan.status, "layout_hash": plan.layout_hash, **shown}
