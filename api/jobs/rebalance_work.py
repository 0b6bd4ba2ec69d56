"""The job of a rebalancing cycle: record, compare, decide, and bring a plan in or propose it; one decision at its end.

::

    read the clock -> read the engine -> record -> weigh -> plan -> compare -+-> propose
         |                                  |        |                 |     |
         |                                  |        |                 |     +-> roll out -> measure -> keep
         v                                  v        v                 v                        |
    the layout stays <-----------------------------------------------------       take back <---+

Gates are looked at after each step (:mod:`api.rebalancing.decide`). What a step has found is kept, so a worker that
takes the cycle up again goes on where it was; but whether the engine may be changed *now* is asked again by every
attempt, right before anything moves.
"""

from __future__ import annotations

from dataclasses import replace

from api.jobs.durable import Json
from api.jobs.plan_work import make_plan
from api.jobs.rebalance_cycle import (
    RunningCycle,
    approve,
    ask_for_plan,
    ask_for_recording,
    ends,
    finish_plan,
    finish_recording,
    note,
    open_cycle,
)
from api.jobs.rebalance_steps import compare, how_engine_changed, look_at_engine, read_clock, weigh
from api.jobs.rollout_work import carry_out
from api.jobs.running import Finish, JobRun, StepFailed
from api.jobs.trace_works import capture_from_engine
from api.rebalancing.decide import Checked, Verdict, decide
from api.rebalancing.evidence import Compared, Drift, Evidence, Recording, Timeliness
from api.rebalancing.gates import Mode
from api.rebalancing.wording import figure
from api.service.error_json import error_json
from api.states import Outcome, RolloutState
from placement.errors import CodedError

NOT_RECORDED = ("EMPTY_PROFILE", "ENGINE_BUSY", "ENGINE_RESTARTED")
"""Errors of a recording that are nobody's fault: no traffic, somebody else records, the engine was started anew."""

OF_ROLLOUT = ("state", "predicted", "measured", "measured_before", "verdict", "layout_hash")
"""What the decision keeps of a rollout."""


def rebalance(run: JobRun) -> Finish:
    """Carry a cycle out; the job fails only where the decision is that the cycle failed."""
    cycle = open_cycle(run)
    clock = run.step("read the clock", lambda: read_clock(run, cycle))
    verdict = decide(cycle.gates, Evidence(timeliness=Timeliness.from_json(clock)))
    if verdict.closed is not None:
        return _stays(run, cycle, verdict, verdict.closed)

    engine = run.step("read the engine before", lambda: look_at_engine(run, cycle))
    note(run, cycle, running_layout=engine["layout_hash"])
    try:
        weighed = _record(run, cycle, engine)
    except StepFailed as failed:
        if failed.error["code"] not in NOT_RECORDED:
            raise
        return _not_recorded(run, cycle, failed.error)
    note(run, cycle, **weighed)
    evidence = Evidence(recording=Recording.from_json(weighed["recording"]), drift=Drift.from_json(weighed["drift"]))
    verdict = decide(cycle.gates, evidence)
    if verdict.closed is not None:
        return _stays(run, cycle, verdict, verdict.closed)

    found = _plan_and_compare(run, cycle, engine, weighed)
    note(run, cycle, **found["numbers"])
    compared = Compared.from_json(found["compared"])
    evidence = replace(evidence, timeliness=Timeliness.from_json(found["timeliness"]), compared=compared)
    verdict = decide(cycle.gates, evidence)
    if verdict.closed is not None:
        return _stays(run, cycle, verdict, verdict.closed)
    if cycle.mode is Mode.PROPOSE:
        sentence = f"A plan waits for approval: {figure(compared)}; {compared.moved_slots} slots would move."
        return ends(run, cycle, Outcome.PROPOSED, code="PLAN_PROPOSED", sentence=sentence, numbers=_gates(verdict))
    return _apply(run, cycle, engine, evidence, compared)


def _record(run: JobRun, cycle: RunningCycle, engine: Json) -> Json:
    trace_id = run.step("ask for a recording", lambda: ask_for_recording(run, cycle))["trace_id"]
    finish_recording(run, trace_id, capture_from_engine(run.about(trace_id, span=(0.05, 0.35))))
    return run.step("weigh the recording", lambda: weigh(run, cycle, trace_id, engine))


def _plan_and_compare(run: JobRun, cycle: RunningCycle, engine: Json, weighed: Json) -> Json:
    plan_id = run.step("ask for a plan", lambda: ask_for_plan(run, cycle, engine))["plan_id"]
    finish_plan(run, plan_id, make_plan(run.about(plan_id, span=(0.4, 0.7))))
    recorded_at = weighed["recorded_at"]
    return run.step("compare", lambda: compare(run, cycle, plan_id, engine, recorded_at=recorded_at))


def _apply(run: JobRun, cycle: RunningCycle, engine: Json, evidence: Evidence, compared: Compared) -> Finish:
    rollout_id, nothing_moved = approve(run, cycle, why=f"all gates of its schedule are open: {figure(compared)}.")
    verdict = decide(cycle.gates, evidence)
    if nothing_moved:
        # This attempt may begin long after the steps before: no step, so that every attempt asks again.
        verdict = decide(cycle.gates, _as_of_now(run, cycle, engine, evidence, compared))
        if verdict.closed is not None:
            return _stays(run, cycle, verdict, verdict.closed)
    ended = carry_out(run, rollout_id, progress=(0.75, 1.0))
    numbers = {**_gates(verdict), "rollout": {name: ended[name] for name in OF_ROLLOUT}}
    if ended["state"] == RolloutState.APPLIED:
        sentence = f"A plan was pushed and kept: {figure(compared)}; {compared.moved_slots} slots moved."
        told = f"{sentence} {ended['sentence']}"
        return ends(run, cycle, Outcome.APPLIED, code="PLAN_APPLIED", sentence=told, numbers=numbers)
    if ended["state"] == RolloutState.ROLLED_BACK:
        told = f"A plan was pushed and taken back: {ended['sentence']}"
        return ends(run, cycle, Outcome.ROLLED_BACK, code=ended["error"]["code"], sentence=told, numbers=numbers)
    note(run, cycle, **numbers)
    raise StepFailed(ended["error"])


def _as_of_now(run: JobRun, cycle: RunningCycle, engine: Json, evidence: Evidence, compared: Compared) -> Evidence:
    """Return the evidence as this moment has it: the time, and whether the engine is still what was planned for."""
    try:
        changed = how_engine_changed(run, cycle, engine)
        timeliness = Timeliness.from_json(read_clock(run, cycle))
    except CodedError as error:
        raise StepFailed(error_json(error)) from error
    return replace(evidence, timeliness=timeliness, compared=replace(compared, engine_changed=changed))


def _stays(run: JobRun, cycle: RunningCycle, verdict: Verdict, closed: Checked) -> Finish:
    return ends(run, cycle, closed.outcome, code=closed.code, sentence=verdict.sentence, numbers=_gates(verdict))


def _not_recorded(run: JobRun, cycle: RunningCycle, error: Json) -> Finish:
    told = f"The layout stays: nothing was recorded, {error['detail']}"
    return ends(run, cycle, Outcome.SKIPPED, code=error["code"], sentence=told, numbers={})


def _gates(verdict: Verdict) -> Json:
    return {"gates": [each.to_json() for each in verdict.checked]}
