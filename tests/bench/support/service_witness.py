"""What must hold after workers were killed, told by the engine's own record of pushes and by the stored rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from api.service.context import Service
from api.service.decisions import SUCCESSES
from api.states import RolloutState, TraceState
from api.store.models import Cycle, Decision, Job, Rollout, Trace
from placement.errors import CodedError
from profiler.engine.client import EngineClient

Push = tuple[str, str]
"""The layout that ran, and the one that was pushed over it."""


@dataclass
class Seen:
    """What was seen of the engine while cycles ran.

    Attributes
    ----------
    first_layout : str
    unnamed : list of str
        Layouts that the engine ran after a cycle although its decision names another one.
    """

    first_layout: str
    unnamed: list[str] = field(default_factory=list)

    def after_cycle(self, decision: Decision, layout_hash: str) -> None:
        """Compare what the engine runs with what a cycle's decision says that it runs."""
        named = (decision.numbers.get("rollout") or {}).get("layout_hash") or decision.numbers.get("running_layout")
        if named != layout_hash:
            self.unnamed.append(f"{decision.id} ({decision.outcome}) names {str(named)[:12]}, not {layout_hash[:12]}")


@dataclass(frozen=True)
class Findings:
    """What was found; every list of faults is to be empty.

    Attributes
    ----------
    cycles, pushes, recordings : int
    outcomes : Counter
        Of decisions.
    not_ended : tuple of str
        Jobs, cycles without exactly one decision, rollouts and recordings that did not end.
    pushed_twice, never_pushed : tuple of Push
        Pushes that the engine did beyond those that rollouts say, and the other way round.
    unnamed_layouts : tuple of str
        Layouts that ran although no decision and no rollout names them.
    lost : tuple of str
        Recordings that are not what was stored.
    """

    cycles: int
    pushes: int
    recordings: int
    outcomes: Counter[str]
    not_ended: tuple[str, ...]
    pushed_twice: tuple[Push, ...]
    never_pushed: tuple[Push, ...]
    unnamed_layouts: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def faults(self) -> tuple[object, ...]:
        return (*self.not_ended, *self.pushed_twice, *self.never_pushed, *self.unnamed_layouts, *self.lost)


def findings(service: Service, client: EngineClient, seen: Seen) -> Findings:
    """Compare the service's rows and files with the engine's own record."""
    with service.database.reading() as session:
        rollouts = session.scalars(select(Rollout).order_by(Rollout.id)).all()
        decisions = session.scalars(select(Decision).order_by(Decision.id)).all()
        cycles = session.scalars(select(Cycle)).all()
        traces = session.scalars(select(Trace)).all()
        jobs = session.scalars(select(Job)).all()
    told, done = Counter(pushes_told(rollouts)), Counter(pushes_done(client.replayed_pushes()))
    named = {seen.first_layout, *(r.from_hash for r in rollouts), *(r.to_hash for r in rollouts)}
    runs = client.placement().layout_hash
    last = rollouts[-1].runs_hash if rollouts else seen.first_layout
    unnamed = (
        [] if runs in named and runs == last else [f"the engine runs {runs[:12]} at the end, not {str(last)[:12]}"]
    )
    decided = Counter(decision.cycle_id for decision in decisions)
    return Findings(
        cycles=len(cycles),
        pushes=sum(done.values()),
        recordings=len(traces),
        outcomes=Counter(str(decision.outcome) for decision in decisions),
        not_ended=(
            *(f"job {job.id} is {job.state}" for job in jobs if not job.state.ended),
            *(f"cycle {cycle.id} has {decided[cycle.id]} decisions" for cycle in cycles if decided[cycle.id] != 1),
            *(f"rollout {rollout.id} is {rollout.state}" for rollout in rollouts if not rollout.state.ended),
            *(f"recording {trace.id} is {trace.state}" for trace in traces if trace.state in UNFINISHED),
            *(["a recording is open in the engine"] if client.demand().recording else []),
        ),
        pushed_twice=tuple((done - told).elements()),
        never_pushed=tuple((told - done).elements()),
        unnamed_layouts=(*seen.unnamed, *unnamed),
        lost=tuple(_lost(service, traces, decisions)),
    )


UNFINISHED = (TraceState.WAITING, TraceState.IMPORTING)


def pushes_told(rollouts: Sequence[Rollout]) -> list[Push]:
    """Return the pushes that rollouts say were done, in their order."""
    told: list[Push] = []
    for rollout in rollouts:
        if rollout.state not in (RolloutState.APPLIED, RolloutState.ROLLED_BACK):
            continue
        if rollout.from_hash is None or rollout.from_hash == rollout.to_hash:
            continue
        told.append((rollout.from_hash, rollout.to_hash))
        if rollout.taken_back is not None:
            told.append((rollout.to_hash, rollout.from_hash))
    return told


def pushes_done(log: Sequence[dict[str, Any]]) -> list[Push]:
    """Return the pushes that changed a layer, by the engine's own record."""
    return [(push["previous_layout_hash"], push["pushed_layout_hash"]) for push in log if push["layout_hashes"]]


def _lost(service: Service, traces: Sequence[Trace], decisions: Sequence[Decision]) -> list[str]:
    lost = []
    for trace in traces:
        if trace.state is not TraceState.READY:
            continue
        try:
            service.files.require_whole(str(trace.sha256))
        except CodedError as error:
            lost.append(f"{trace.id}: {error.detail}")
    ready = {trace.id for trace in traces if trace.state is TraceState.READY}
    lost += [
        f"{decision.id} was made from the recording {decision.trace_id}, which is not there"
        for decision in decisions
        if decision.outcome in SUCCESSES and decision.trace_id not in ready
    ]
    return lost
