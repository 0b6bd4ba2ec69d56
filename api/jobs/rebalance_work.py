"""The job of a rebalancing cycle: record, compare, decide, and bring a plan in or propose it; one decision at its end.

::

    read the clock --> read the engine --> record --> weigh --> plan --> compare --> propose
         |                                    |         |                  |    \\--> roll out --> measure --> keep
         |                                    |         |                  |                          \\--> take back
         +------------------------------------+---------+------------------+--> the layout stays

Gates are looked at after each step (:mod:`api.rebalancing.decide`). What a step has found is kept, so a worker that
takes the cycle up again goes on where it was; but whether the engine may be changed *now* is asked again by every
attempt, right before anything moves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api.jobs.durable import Json
from api.jobs.plan_work import make_plan
from api.jobs.rebalance_cycle import (
    Cycle,
    amend,
    approve,
    ask_for_plan,
    ask_for_recording,
    conclude,
    finish_part,
    open_cycle,
    supersede_earlier,
)
from api.jobs.rebalance_steps import compare, engine_now, look_at_engine, read_clock, weigh
from api.jobs.rollout_work import carry_out
from api.jobs.running import Finish, JobRun, StepFailed
from api.jobs.trace_works import capture_from_engine
from api.rebalancing.decide import Verdict, decide
from api.rebalancing.evidence import Compared, Drift, Evidence, Recording, Timeliness
from api.rebalancing.gates import Mode
from api.rebalancing.wording import figure
from api.service.error_json import error_json
from api.states import Outcome, RolloutState
from placement.errors import CodedError

NOT_RECORDED = ("EMPTY_PROFILE", "ENGINE_BUSY")
"""Errors of a recording that are no fault of anybody: there was no traffic, or somebody else records."""


def rebalance(run: JobRun) -> Finish:
    """Carry a cycle out; the job fails only where the decision is that the cycle failed."""
    cycle = open_cycle(run)
    evidence = Evidence(timeliness=Timeliness(**run.step("read the clock", lambda: read_clock(run, cycle))))
    verdict = decide(cycle.gates, evidence)
    if not verdict.goes_on:
        return _stays(run, cycle, verdict)

    engine = run.step("read the engine before", lambda: look_at_engine(run, cycle))
    amend(run, cycle, running_layout=engine["layout_hash"])
    try:
        weighed = _record(run, cycle, engine)
    except StepFailed as failed:
        if failed.error["code"] not in NOT_RECORDED:
            raise
        return _not_recorded(run, cycle, failed.error)
    recording, drift = Recording(**weighed["recording"]), Drift(**weighed["drift"])
    amend(run, cycle, **weighed)
    verdict = decide(cycle.gates, Evidence(recording=recording, drift=drift))
    if not verdict.goes_on:
        return _stays(run, cycle, verdict)

    evidence = _plan_and_compare(run, cycle, engine, Evidence(recording=recording, drift=drift))
    verdict = decide(cycle.gates, evidence)
    if not verdict.goes_on or evidence.compared is None:
        return _stays(run, cycle, verdict)
    if cycle.mode is Mode.PROPOSE:
        return _proposes(run, cycle, verdict, evidence.compared)
    return _applies(run, cycle, verdict, evidence)


def _record(run: JobRun, cycle: Cycle, engine: Json) -> Json:
    trace_id = run.step("ask for a recording", lambda: ask_for_recording(run, cycle))["trace_id"]
    finish_part(run, capture_from_engine(run.about(trace_id, span=(0.05, 0.35))), made=trace_id)
    return run.step("weigh the recording", lambda: weigh(run, cycle, trace_id, engine))


def _plan_and_compare(run: JobRun, cycle: Cycle, engine: Json, evidence: Evidence) -> Evidence:
    plan_id = run.step("ask for a plan", lambda: ask_for_plan(run, cycle, engine))["plan_id"]
    finish_part(run, make_plan(run.about(plan_id, span=(0.4, 0.7))), made=plan_id)
    found = run.step("compare", lambda: compare(run, cycle, plan_id, engine))
    amend(run, cycle, **found["numbers"])
    return replace(evidence, timeliness=Timeliness(**found["timeliness"]), compared=compared_from(found["compared"]))


def _stays(run: JobRun, cycle: Cycle, verdict: Verdict) -> Finish:
    closed = verdict.closed
    if closed is None:
        raise StepFailed({"code": "INTERNAL_ERROR", "detail": "a cycle stopped with all gates open.", "remedies": []})
    return conclude(
        run, cycle, outcome=closed.outcome, code=closed.code, sentence=verdict.sentence, numbers=_gates(verdict)
    )


def _not_recorded(run: JobRun, cycle: Cycle, error: Json) -> Finish:
    sentence = f"The layout stays: nothing was recorded, {error['detail']}"
    return conclude(run, cycle, outcome=Outcome.SKIPPED, code=error["code"], sentence=sentence, error=error)


def _proposes(run: JobRun, cycle: Cycle, verdict: Verdict, compared: Compared) -> Finish:
    supersede_earlier(run, cycle)
    sentence = f"A plan waits for approval: {figure(compared)}; {compared.moved_slots} slots would move."
    return conclude(
        run, cycle, outcome=Outcome.PROPOSED, code="PLAN_PROPOSED", sentence=sentence, numbers=_gates(verdict)
    )


def _applies(run: JobRun, cycle: Cycle, verdict: Verdict, evidence: Evidence) -> Finish:
    compared = evidence.compared
    if compared is None:
        raise StepFailed({"code": "INTERNAL_ERROR", "detail": "a cycle has nothing to apply.", "remedies": []})
    rollout_id, nothing_moved = approve(run, cycle, why=f"its schedule's gates are open: {figure(compared)}.")
    if nothing_moved:
        again = decide(cycle.gates, _as_of_now(run, cycle, evidence))
        if not again.goes_on:
            return _stays(run, cycle, again)
    ended = carry_out(run, rollout_id, progress=(0.75, 1.0))
    measured = {name: ended[name] for name in ("predicted", "measured", "measured_before", "verdict", "layout_hash")}
    numbers = {**_gates(verdict), "rollout": measured}
    if ended["state"] == RolloutState.APPLIED:
        sentence = f"A plan was pushed and kept: {figure(compared)}; {compared.moved_slots} slots moved."
        return conclude(
            run, cycle, outcome=Outcome.APPLIED, code="PLAN_APPLIED",
            sentence=" ".join((sentence, ended["sentence"])), numbers=numbers,
        )  # fmt: skip
    if ended["state"] == RolloutState.ROLLED_BACK:
        return conclude(
            run, cycle, outcome=Outcome.ROLLED_BACK, code=ended["error"]["code"],
            sentence=f"A plan was pushed and taken back: {ended['sentence']}", numbers=numbers,
        )  # fmt: skip
    amend(run, cycle, **numbers)
    raise StepFailed(ended["error"])


def _as_of_now(run: JobRun, cycle: Cycle, evidence: Evidence) -> Evidence:
    """Return the evidence as this moment has it: the time, and whether the engine is still what was planned for."""
    if evidence.compared is None:
        return evidence
    try:
        changed = engine_now(run, cycle, cycle_engine=run.step_value("read the engine before"))
        timeliness = Timeliness(**read_clock(run, cycle))
    except CodedError as error:
        raise StepFailed(error_json(error)) from error
    return replace(evidence, timeliness=timeliness, compared=replace(evidence.compared, engine_changed=changed))


def compared_from(value: dict[str, Any]) -> Compared:
    raise NotImplementedError


def _gates(verdict: Verdict) -> Json:
    return {"gates": [each.to_json() for each in verdict.checked]}
