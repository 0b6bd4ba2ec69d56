"""Bringing a layout into an engine, told by reading the engine and never by memory.

Before anything moves, the engine as it was is stored and the rollout is ``pushing``. A worker that takes the job up
again reads the engine: all layers old, the push never began and begins now; all new, it was done and is verified; some
of each, the rest is pushed; anything else, somebody else changed the engine and nothing more is done to it. Every push
names the layout it expects, so that a worker which only seemed dead cannot push a second time.

What fails after layers may have moved is judged by reading the engine once more (:mod:`profiler.engine.recognise`):
the layout before is put back where the engine is explained by this rollout, and the engine is left alone where it is
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.errors import JobStopped
from api.jobs import rollout_engine as on_engine
from api.jobs import rollout_measure as on_measure
from api.jobs.durable import Json
from api.jobs.rollout_aim import Aim, target_layout
from api.jobs.rollout_engine import REFUSED, UNREAD
from api.jobs.rollout_row import end, go_to
from api.jobs.rollout_verdict import NOT_ASKED, WORSE_THAN_BEFORE, not_measured, warnings_of
from api.jobs.running import Finish, JobRun, StepFailed
from api.states import RolloutState
from api.store import engines, plans
from profiler.engine.recognise import Found

UNANSWERED = ("ENGINE_UNREACHABLE", "ENGINE_FAILED", "ENGINE_ANSWER_INVALID", "ENGINE_RESTING", "APPLY_STALLED")
"""Errors after which only the engine itself can say what was done."""


def roll_out(run: JobRun) -> Finish:
    """Do the job of one rollout; the job succeeds when the layout is applied, and fails with the reason otherwise."""
    outcome = carry_out(run, run.subject_id)
    if outcome["state"] != RolloutState.APPLIED:
        raise StepFailed(outcome["error"])
    return lambda session: outcome


def carry_out(run: JobRun, rollout_id: str, *, progress: tuple[float, float] = (0.0, 1.0)) -> Json:
    """Check, push, verify and measure a rollout inside a running job, and take it back by itself if need be.

    The rollout is a row made by :func:`api.service.rollouts.begin` (a job of its own) or
    :func:`api.service.rollouts.begin_within` (inside another job); its ``job_id`` is the running job's. The steps are
    durable and named after the rollout, so one job may carry out several, one after the other. Called again by a
    worker that took the job up, it goes on where it was, and returns the same once it has ended.

    Parameters
    ----------
    run
        The running job, of the rollout's engine.
    rollout_id
    progress
        Part of the job's progress that the rollout is.

    Returns
    -------
    dict
        How it ended; never half-way, and errors are results too. ``state`` is one of

        - ``applied``: the engine runs the layout, read back and (if asked for and possible) measured;
        - ``rolled_back``: it was taken back by itself, because the check after the push failed or the measure was
          worse than the layout before; ``error`` says why, the engine runs ``from_hash`` again, read back;
        - ``refused``: nothing has moved;
        - ``failed``: the engine does not run the layout as it should and could not be taken back;
        - ``superseded``: the engine was started anew or somebody else changed it; it was left alone;
        - ``unconfirmed``: the engine stopped answering after layers may have moved.

        Beside it ``rollout_id``, ``sentence`` (for people), ``layout_hash`` (what the engine ran when last read, or
        None), ``from_hash``, ``to_hash``, ``status``, ``moved_slots``, ``moved_bytes`` (of the push, None where there
        was none), ``predicted``, ``measured``, ``measured_before``, ``verdict``, ``warnings``, and ``error`` (``code``,
        ``detail``, ``remedies``; None exactly when applied).

    Raises
    ------
    JobStopped
        The job was cancelled before anything moved; the rollout is ``cancelled``.
    JobTakenOver
        Another worker has the job; nothing more is written here.
    """
    work = _begin(run, rollout_id, progress)
    try:
        checked = work.step("check", lambda: on_engine.check(work.aim))
    except StepFailed as failed:
        if failed.error["code"] == JobStopped.code:
            raise
        return work.end(RolloutState.REFUSED, error=failed.error)
    return _push(work, checked)


def _push(work: _Work, checked: Json) -> Json:
    work.go_to(
        RolloutState.PUSHING,
        from_hash=checked["layout_hash"],
        from_sha256=checked["sha256"],
        runs_hash=checked["layout_hash"],
        warnings=checked["warnings"],
        predicted=checked["predicted"],
    )
    try:
        pushed = work.step("push", lambda: on_engine.push(work.aim, checked))
    except StepFailed as failed:
        error = failed.error
        read = work.step("read after the push", lambda: on_engine.read_after_push(work.aim, checked, error))
        if read["found"] in (REFUSED, Found.OLD):
            return work.end(RolloutState.REFUSED, error=error, runs_hash=read["layout_hash"])
        if read["found"] != Found.NEW or error["code"] not in UNANSWERED:
            return _after_a_failure(work, checked, read, error)
        pushed = {"status": "applied", "answer_lost": True, "sentence": f"{error['detail']} {read['sentence']}"}
    return _verify(work, checked, pushed)


def _verify(work: _Work, checked: Json, pushed: Json) -> Json:
    """Read back once more; where the push's own answer was lost, with the checksums of every slot."""
    work.go_to(RolloutState.VERIFYING, result=pushed)
    lost = bool(pushed.get("answer_lost"))
    error: Json = {}
    for attempt in ("verify", "verify again"):
        try:
            verified = work.step(attempt, lambda: on_engine.verify(work.aim, checked, weights=lost))
        except StepFailed as failed:
            error = failed.error
        else:
            return _measure(work, checked, verified)
        read = work.step(f"read after {attempt}", lambda: on_engine.read(work.aim, checked))
        if read["found"] != Found.NEW or error["code"] not in UNANSWERED:
            return _after_a_failure(work, checked, read, error)
    return work.end(RolloutState.UNCONFIRMED, error=error)


def _measure(work: _Work, checked: Json, verified: Json) -> Json:
    """Judge the layout on the engine's own traffic; what cannot be measured is kept, with a warning."""
    runs = {"runs_hash": verified["layout_hash"]}
    if not work.aim.rollout.measure_seconds:
        return work.end(RolloutState.APPLIED, why=NOT_ASKED.sentence, verdict=NOT_ASKED.to_json(), **runs)
    work.go_to(RolloutState.MEASURING, **runs)
    try:
        found = work.step("measure", lambda: on_measure.measure(work.aim, checked, verified))
    except StepFailed as failed:
        error = failed.error
        read = work.step("read after measuring", lambda: on_engine.read(work.aim, checked))
        if read["found"] != Found.NEW:
            return _after_a_failure(work, checked, read, error)
        found = on_measure.unmeasured(not_measured(error["code"], error["detail"]))
    verdict = found["verdict"]
    if verdict["code"] == WORSE_THAN_BEFORE:
        error = {"code": WORSE_THAN_BEFORE, "detail": verdict["sentence"], "remedies": []}
        return take_back(work, checked, error, **found, **runs)
    return work.end(
        RolloutState.APPLIED, why=verdict["sentence"], warnings=[*checked["warnings"], *warnings_of(verdict)],
        **found, **runs,
    )  # fmt: skip


def _after_a_failure(work: _Work, checked: Json, read: Json, error: Json) -> Json:
    """End a rollout by what the engine was found to be, or put the layout before back where that is explained."""
    runs = {"runs_hash": read["layout_hash"]}
    told = {**error, "detail": f"{error['detail']} {read['sentence']}"}
    state = _lost(read)
    if read["found"] == Found.OLD:  # it was new a while ago
        state = RolloutState.SUPERSEDED
    if state is RolloutState.SUPERSEDED:
        restarted = read["found"] in (Found.RESTARTED, Found.RESHAPED)
        told["code"] = "ENGINE_RESTARTED" if restarted else "LAYOUT_HASH_MISMATCH"
    nothing_to_check_with = error["code"] == "WEIGHTS_CHANGED"
    if state is not RolloutState.FAILED or work.takes_back or nothing_to_check_with:
        return work.end(state, error=told, **runs)
    return take_back(work, checked, error, **runs)


def take_back(work: _Work, checked: Json, error: Json, **fields: Any) -> Json:
    """Put the layout before back; ``error`` is why, ``fields`` are written down with it."""
    work.go_to(RolloutState.TAKING_BACK, error=error, **fields)
    try:
        taken = work.step("take back", lambda: on_engine.take_back(work.aim, checked))
    except StepFailed as failed:
        why = failed.error["detail"]
        read = work.step("read after taking back", lambda: on_engine.read(work.aim, checked))
        told = {**error, "detail": f"{error['detail']} It could not be taken back: {why} {read['sentence']}"}
        return work.end(_lost(read), error=told, runs_hash=read["layout_hash"])
    told = {**error, "detail": f"{error['detail']} It was taken back: {taken['sentence']}"}
    return work.end(RolloutState.ROLLED_BACK, error=told, taken_back=taken, runs_hash=taken["layout_hash"])


def _lost(read: Json) -> RolloutState:
    """Return how a rollout ends that neither is applied nor was taken back, by what the engine was found to be."""
    if read["found"] in (UNREAD, Found.PUSHING):
        return RolloutState.UNCONFIRMED
    if read["found"] in (Found.OTHER, Found.RESTARTED, Found.RESHAPED):
        return RolloutState.SUPERSEDED
    return RolloutState.FAILED


@dataclass(frozen=True)
class _Work:
    """One rollout and the job that carries it out."""

    run: JobRun
    aim: Aim
    takes_back: bool

    def step(self, name: str, action: Any) -> Json:
        return self.run.step(f"rollout {self.aim.rollout_id}: {name}", action)

    def go_to(self, state: RolloutState, **fields: Any) -> None:
        go_to(self.run, self.aim.rollout_id, state, **fields)

    def end(self, state: RolloutState, *, why: str = "", error: Json | None = None, **fields: Any) -> Json:
        told = why or ("" if error is None else str(error["detail"]))
        return end(self.run, self.aim.rollout_id, state, why=told, error=error, **fields)


def _begin(run: JobRun, rollout_id: str, progress: tuple[float, float]) -> _Work:
    go_to(run, rollout_id, RolloutState.CHECKING)
    with run.service.database.reading() as session:
        rollout = plans.find_rollout(session, rollout_id)
        engine = engines.find(session, rollout.engine_id)
    aim = Aim(run, rollout, engine, target_layout(run.service, rollout), progress)
    return _Work(run, aim, takes_back=rollout.takes_back_id is not None)
