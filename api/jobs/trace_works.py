"""Jobs that make recordings: reading uploaded files, and capturing from an engine."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from api.jobs.durable import Json
from api.jobs.running import Finish, JobRun
from api.jobs.task_process import TaskFailed, run_task
from api.service.engine_access import FAILURE_CODES, RECORDING, note_failure, note_success, require_rested
from api.states import TraceState
from api.store import engines, traces
from api.store.audit import change_state
from api.store.columns import iso, now
from api.store.database import Session

IMPORT_GRACE_S = 0.3
CAPTURE_GRACE_S = 10.0
"""The engine must be told to stop recording."""


def import_upload(run: JobRun) -> Finish:
    """Read the uploaded files and keep the trace that is made of them."""
    _begin(run)
    made = run.step("import", lambda: _task(run, "import", _import_request(run), grace_s=IMPORT_GRACE_S))
    return lambda session: _finish(session, run, made)


def capture_from_engine(run: JobRun) -> Finish:
    """Record from the engine and keep the trace."""
    resumed = _begin(run)
    made = run.step("capture", lambda: _captured(run, resumed=resumed))
    return lambda session: _finish(session, run, made)


def _begin(run: JobRun) -> bool:
    """Let the recording begin; return whether an earlier attempt had begun it."""
    with run.service.database.writing() as session:
        trace = traces.find(session, run.subject_id)
        if trace.state is not TraceState.WAITING:
            return True
        change_state(session, trace, TraceState.IMPORTING, run.actor)
        return False


def _captured(run: JobRun, *, resumed: bool) -> Json:
    engine_id, request = _capture_request(run)
    try:
        made = _task(run, "capture", {**request, "resumed": resumed}, grace_s=CAPTURE_GRACE_S)
    except TaskFailed as failed:
        code = failed.error["code"]
        if code in FAILURE_CODES:
            note_failure(run.service, engine_id, code=code, detail=failed.error["detail"], during=RECORDING)
        raise
    note_success(run.service, engine_id, during=RECORDING)
    made["facts"]["recorded_at"] = iso(now())
    return made


def _task(run: JobRun, name: str, request: Json, *, grace_s: float) -> Json:
    with tempfile.TemporaryDirectory(prefix="moeplan-job-") as folder:
        out = Path(folder) / "trace.parquet"
        made = run_task(
            name,
            {**request, "out": str(out)},
            on_progress=run.report,
            require_going_on=run.require_not_stopped,
            grace_s=grace_s,
        )
        return {**made, **asdict(run.service.files.put_file(out))}


def _import_request(run: JobRun) -> Json:
    with run.service.database.reading() as session:
        trace = traces.find(session, run.subject_id)
        files = [
            {"name": upload.name, "path": str(run.service.files.require_whole(upload.sha256))}
            for upload in traces.uploads(session, trace.id)
        ]
        return {"files": files, "read": trace.request, "name": trace.name}


def _capture_request(run: JobRun) -> tuple[str, Json]:
    with run.service.database.reading() as session:
        trace = traces.find(session, run.subject_id)
        engine = engines.find(session, str(trace.engine_id))
    require_rested(engine)
    return engine.id, {
        "url": engine.url,
        "key_reference": engine.key_reference,
        "read_key_reference": engine.read_key_reference,
        "timeout_s": run.service.settings.engine_timeout_s,
        "limits": trace.request,
        "name": trace.name,
    }


def _finish(session: Session, run: JobRun, made: dict[str, Any]) -> Json:
    trace = traces.find(session, run.subject_id)
    trace.sha256, trace.size_bytes = made["sha256"], made["size_bytes"]
    trace.facts, trace.warnings = made["facts"], made["warnings"]
    days = run.service.settings.trace_retention_days
    trace.expires_at = None if days is None else now() + timedelta(days=days)
    traces.forget_uploads(session, trace.id)
    change_state(session, trace, TraceState.READY, run.actor, sha256=trace.sha256)
    return {"trace_id": trace.id}
