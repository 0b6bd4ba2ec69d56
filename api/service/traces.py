"""Recordings: taking them in, recording them, keeping and forgetting them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.errors import BadPath, BadRequest, WrongState
from api.service import jobs
from api.service.context import Service
from api.states import JobKind, TraceState
from api.store import audit
from api.store.audit import Actor
from api.store.columns import now
from api.store.database import Session
from api.store.files import StoredFile, plain_name
from api.store.identifiers import new_id
from api.store.models import Engine, Job, Trace, TraceUpload

MAX_CAPTURE_S = 24 * 3600.0
MAX_CAPTURE_STEPS = 10_000_000


def upload(
    service: Service,
    session: Session,
    actor: Actor,
    *,
    name: str,
    engine: Engine | None,
    files: Mapping[str, StoredFile],
    read: Mapping[str, Any],
) -> tuple[Trace, Job]:
    """Take in files that are stored already, and queue reading them.

    Parameters
    ----------
    files
        By the name they were uploaded under.
    read
        ``model`` (config.json as an object), ``experts``, ``ranks``, ``allow_partial``, ``map_history``.

    Raises
    ------
    BadPath
        A file's name is more than a name.
    BadRequest
        No file, or an empty one.
    """
    if not files:
        raise BadRequest("no file was sent; send one or more in the form field files.")
    for file_name, stored in files.items():
        plain_name(file_name)
        if stored.size_bytes == 0:
            raise BadRequest(f"the file {file_name} is empty.")
    trace = _new_trace(actor, name=name, origin="upload", engine=engine, request=dict(read))
    session.add(trace)
    session.flush()
    for file_name, stored in files.items():
        session.add(TraceUpload(trace_id=trace.id, name=file_name, sha256=stored.sha256, size_bytes=stored.size_bytes))
    audit.record(session, actor, "trace.uploaded", trace, files=sorted(files))
    job = jobs.begin(
        service,
        session,
        actor,
        kind=JobKind.IMPORT,
        subject_id=trace.id,
        engine_id=None,  # reading files does not occupy the engine
    )
    trace.job_id = job.id
    return trace, job


def capture(
    service: Service, session: Session, actor: Actor, *, name: str, engine: Engine, limits: Mapping[str, Any]
) -> tuple[Trace, Job]:
    """Queue a recording from an engine.

    Parameters
    ----------
    limits
        ``steps`` or ``seconds``, exactly one: a recording always has an end. ``window_steps`` or ``window_seconds``.

    Raises
    ------
    BadRequest
    """
    trace = expected_capture(session, actor, name=name, engine=engine, limits=limits)
    job = jobs.begin(service, session, actor, kind=JobKind.CAPTURE, subject_id=trace.id, engine_id=engine.id)
    trace.job_id = job.id
    return trace, job


def expected_capture(session: Session, actor: Actor, *, name: str, engine: Engine, limits: Mapping[str, Any]) -> Trace:
    """Write down a recording that a job is about to make. Parameters and errors are those of :func:`capture`."""
    given = checked_limits(limits)
    trace = _new_trace(actor, name=name, origin="capture", engine=engine, request=given)
    session.add(trace)
    session.flush()
    audit.record(session, actor, "trace.capture_asked", trace, **given)
    return trace


def checked_limits(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given of the limits of a recording. Raises :class:`BadRequest`."""
    given = {field: value for field, value in limits.items() if value is not None}
    if ("steps" in given) == ("seconds" in given):
        raise BadRequest("give either steps or seconds to record, and not both: a recording has an end.")
    if "window_steps" in given and "window_seconds" in given:
        raise BadRequest("give the length of a window in steps or in seconds, not in both.")
    return given


def require_ready(trace: Trace) -> Trace:
    """Return a recording that can be read. Raises :class:`WrongState`."""
    if trace.state is not TraceState.READY or trace.sha256 is None:
        raise WrongState(f"the trace {trace.id} is {trace.state}: {trace.state.sentence}")
    return trace


def change(session: Session, actor: Actor, trace: Trace, changes: Mapping[str, Any]) -> None:
    """Rename a recording, or keep it beyond its time of retention."""
    for field, value in changes.items():
        setattr(trace, field, value)
    trace.version += 1
    audit.record(session, actor, "trace.changed", trace, fields=sorted(changes))


def remove(session: Session, actor: Actor, trace: Trace, *, why: str) -> None:
    """Remove a recording's data now; that it was there, and the plans made from it, stay.

    Raises
    ------
    WrongState
        It is not ready.
    """
    require_ready(trace)
    trace.sha256 = None
    audit.change_state(session, trace, TraceState.EXPIRED, actor, why=why or "removed on request")


def _new_trace(actor: Actor, *, name: str, origin: str, engine: Engine | None, request: dict[str, Any]) -> Trace:
    if not name:
        raise BadPath("a trace needs a name.")
    return Trace(
        id=new_id("trc"),
        name=name,
        state=TraceState.WAITING,
        origin=origin,
        engine_id=None if engine is None else engine.id,
        request=request,
        warnings=[],
        kept=False,
        created_by=actor.who,
        created_at=now(),
        version=1,
    )
