"""The service's state in ``/metrics``, read from the database when asked, so that every replica tells the same.

Every name is explained in the table of ``api/README.md``; a test holds the table and the names to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from api.http.expert_metrics import ExpertShares
from api.http.metric_families import counter, gauge
from api.service.context import Service
from api.states import EngineState, JobKind, JobState, Outcome, RolloutState
from api.store import decisions, engines, jobs, plans, schedules, traces
from api.store.models import Engine, Plan, Rollout, Schedule, Trace, Worker
from placement.errors import CodedError

USUAL_LOCAL_TARGET = 0.6
"""Of a plan that was asked for without one."""

JUDGED = ("local_gpu", "local_node", "imbalance", "balancedness", "sglang_balancedness")
KINDS = {"predicted": "predicted", "measured": "measured", "before": "measured_before"}
"""The label ``kind`` of a figure, and the column of a rollout that it is from."""

PLAN_FIGURES = {
    "local_gpu": "share of routed tokens served on the home GPU, predicted",
    "imbalance": "imbalance of the worst window, predicted",
    "gap": "distance from the proven bound",
    "moved_slots": "slots that move",
    "solve_seconds": "time of the solver",
}


@dataclass(frozen=True)
class _State:
    """Everything that is told of, as of one moment."""

    at: datetime
    jobs: Sequence[tuple[JobKind, JobState, int]]
    workers: Sequence[Worker]
    engines: Sequence[Engine]
    plans: Sequence[Plan]
    traces: Sequence[Trace]
    running: Sequence[Rollout]
    ended: Sequence[Rollout]
    rollouts: Sequence[tuple[RolloutState, int]]
    schedules: Sequence[Schedule]
    decisions: Sequence[tuple[Outcome, int]]

    @property
    def names(self) -> Mapping[str | None, str]:
        """The engines that are there, by their ids."""
        return {engine.id: engine.name for engine in self.engines}


class StateCollector(Collector):
    """Tells of jobs, workers, engines, schedules and what came of the newest plans, recordings and rollouts."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._experts = ExpertShares(service)

    def collect(self) -> Iterator[Metric]:
        """Read the database; where it does not answer, that alone is told."""
        try:
            state = _read(self._service)
        except CodedError:
            yield gauge("database_up", "Whether the database answers.", (), [((), 0)])
            return
        yield gauge("database_up", "Whether the database answers.", (), [((), 1)])
        yield from _of_jobs(state)
        yield from _of_engines(state)
        yield from _of_plans(state)
        yield from _of_rollouts(state)
        yield from _of_schedules(state)
        if self._service.settings.metrics_per_expert:
            yield self._experts.family(state.names, state.traces)


def _read(service: Service) -> _State:
    with service.database.reading() as session:
        return _State(
            at=schedules.clock(session),
            jobs=jobs.counts(session),
            workers=jobs.workers(session),
            engines=engines.all_there(session),
            plans=plans.newest_by_engine(session),
            traces=traces.newest_by_engine(session),
            running=plans.newest_rollouts(session, [RolloutState.APPLIED]),
            ended=plans.newest_rollouts(session, [state for state in RolloutState if state.ended]),
            rollouts=plans.rollout_counts(session),
            schedules=schedules.all_there(session),
            decisions=decisions.counts(session),
        )


def _of_jobs(state: _State) -> Iterator[Metric]:
    counted = [((str(kind), str(job_state)), count) for kind, job_state, count in state.jobs]
    yield gauge("jobs", "Jobs by kind and state.", ("kind", "state"), counted)
    waiting = sum(count for _, job_state, count in state.jobs if job_state is JobState.QUEUED)
    yield gauge("jobs_waiting", "Jobs that no worker has taken yet.", (), [((), waiting)])
    seen = [((worker.id,), _since(state, worker.seen_at)) for worker in state.workers]
    yield gauge("worker_seen_seconds", "Since a worker was seen.", ("worker",), seen)


def _of_engines(state: _State) -> Iterator[Metric]:
    there = state.engines
    answering = (EngineState.READY, EngineState.LIMITED)
    yield gauge("engine_up", "Whether an engine answered last time.", ("engine",),
                [((engine.name,), engine.state in answering) for engine in there])  # fmt: skip
    yield gauge("engine_failures_in_row", "Failures in a row.", ("engine",),
                [((engine.name,), engine.failures_in_row) for engine in there])  # fmt: skip
    yield counter("engine_errors", "Failures of an engine to answer as it should.", ("engine",),
                  [((engine.name,), engine.failures) for engine in there])  # fmt: skip
    resting = [
        ((engine.name,), engine.resting_until is not None and engine.resting_until > state.at) for engine in there
    ]
    yield gauge("engine_resting", "1 while an engine is left alone.", ("engine",), resting)
    yield counter("moved_bytes", "Bytes of experts that pushes brought from another GPU.", ("engine",),
                  [((engine.name,), engine.moved_bytes) for engine in there])  # fmt: skip


def _of_plans(state: _State) -> Iterator[Metric]:
    names = state.names
    made = [(names[plan.engine_id], plan) for plan in state.plans if plan.engine_id in names]
    for field, text in PLAN_FIGURES.items():
        values = [((name,), getattr(plan, field)) for name, plan in made]
        yield gauge(f"plan_{field}", f"Newest plan: {text}.", ("engine",), values)
    targets = [((name,), plan.request.get("local_target", USUAL_LOCAL_TARGET)) for name, plan in made]
    yield gauge("local_target", "Share that is to be served on the home GPU.", ("engine",), targets)
    ages = [((name,), _since(state, plan.created_at)) for name, plan in made]
    yield gauge("plan_age_seconds", "Age of the newest plan.", ("engine",), ages)
    recorded = [
        ((names[trace.engine_id],), _since(state, trace.created_at))
        for trace in state.traces
        if trace.engine_id in names
    ]
    yield gauge("trace_age_seconds", "Age of the newest recording.", ("engine",), recorded)


def _of_rollouts(state: _State) -> Iterator[Metric]:
    yield gauge("rollouts", "Rollouts by state.", ("state",), [((str(name),), count) for name, count in state.rollouts])
    names = state.names
    running = [(names[row.engine_id], row) for row in state.running if row.engine_id in names]
    for figure in JUDGED:
        values = [
            ((name, kind), (getattr(row, column) or {}).get(figure))
            for name, row in running
            for kind, column in KINDS.items()
        ]
        yield gauge(figure, f"{figure} of the layout that was applied last.", ("engine", "kind"), values)
    ages = [((name,), _since(state, row.ended_at)) for name, row in running]
    yield gauge("layout_age_seconds", "Since a layout was last applied.", ("engine",), ages)
    ended = [(names[row.engine_id], row) for row in state.ended if row.engine_id in names]
    outcomes = [
        ((name, str(outcome)), row.state is outcome) for name, row in ended for outcome in RolloutState if outcome.ended
    ]
    yield gauge("last_rollout", "1 for how the last rollout ended.", ("engine", "state"), outcomes)
    last = [((name,), _since(state, row.ended_at)) for name, row in ended]
    yield gauge("last_rollout_age_seconds", "Since the last rollout ended.", ("engine",), last)


def _of_schedules(state: _State) -> Iterator[Metric]:
    names = state.names
    # The id keeps apart schedules of one engine that have the same name.
    there = [((names[row.engine_id], row.id, row.name), row) for row in state.schedules if row.engine_id in names]
    labels = ("engine", "schedule", "schedule_name")
    yield gauge("schedule_paused", "1 while a schedule is paused.", labels, [(key, row.paused) for key, row in there])
    ages = [(key, _since(state, row.last_success_at)) for key, row in there]
    yield gauge("schedule_success_age_seconds", "Since a schedule's cycle last ended well.", labels, ages)
    missed = [(key, row.missed_ticks) for key, row in there]
    yield counter("schedule_missed_ticks", "Ticks that no worker was there for.", labels, missed)
    due = [(key, None if row.next_due_at is None else _until(state, row.next_due_at)) for key, row in there]
    yield gauge("schedule_next_tick_seconds", "Until the next tick; below 0 it is overdue.", labels, due)
    cycles = [(key, row.cycles) for key, row in there]
    yield counter("schedule_cycles", "Cycles begun, also those that ended at once.", labels, cycles)
    counted = dict(state.decisions)
    ended = [((str(outcome),), counted.get(outcome, 0)) for outcome in Outcome]
    yield counter("decisions", "How rebalancing cycles ended.", ("outcome",), ended)


def _until(state: _State, moment: datetime) -> float:
    return (moment - state.at).total_seconds()


def _since(state: _State, moment: datetime | None) -> float | None:
    return None if moment is None else (state.at - moment).total_seconds()
