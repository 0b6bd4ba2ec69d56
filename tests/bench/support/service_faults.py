"""Rebalancing cycles whose workers are killed at random: the service, an engine to push into, and the killer."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from api.rebalancing.gates import Mode
from api.service import rollouts as rollout_service
from api.service.context import Service
from api.states import JobState, Outcome, RolloutState
from api.store import jobs, plans
from api.store.models import Decision, Job
from profiler.engine.client import EngineClient
from tests.api.rollouts import LIGHT
from tests.api.schedules import OPEN, decided, register, run_now, scheduled
from tests.api.services import ACTOR, WorkerProcess, job_of, replay_engine, service_on
from tests.bench.support.service_witness import Findings, Seen, findings

WORKERS = 2
BEAT_S, GONE_AFTER_S = 0.5, 6.0
"""How often workers say that they are alive, and after how long without that one is taken for dead: as many beats as a
busy machine may swallow."""

JOB_LIMIT_S = 900.0
"""A job that does not end in this time, kills included, hangs."""

POLL_S = 0.15
LONGEST_WAIT_S = 0.5
"""A kill comes up to so long after the progress that was drawn for it, so that it is between reports too."""

MOST_KILLS = 5
"""Of one cycle."""

PACE = {"layers_per_chunk": 1, "pause_s": 0.15}
MEASURE_S = 0.6


@dataclass
class Killer:
    """Kills the worker that has a job, at moments drawn by lot, and puts a new one in its place.

    Attributes
    ----------
    kills : Counter
        How often a job was cut off, by the step that it said to be at.
    """

    service: Service
    lot: random.Random
    kills_left: int
    kills: Counter[str] = field(default_factory=Counter)
    _workers: dict[str, WorkerProcess] = field(default_factory=dict)
    _started: int = 0

    def start_worker(self) -> None:
        self._started += 1
        worker = WorkerProcess(self.service.settings, f"w{self._started}", gone_after_s=GONE_AFTER_S, beat_s=BEAT_S)
        self._workers[worker.id] = worker

    def stop(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    def see_through(self, job_id: str, *, most: int) -> Job:
        """Follow a job to its end, killing whoever has it up to ``most`` times on the way.

        Raises
        ------
        TimeoutError
            It does not end.
        """
        moments = sorted(self.lot.random() for _ in range(min(self.lot.randint(1, most), self.kills_left)))
        until_s = time.monotonic() + JOB_LIMIT_S
        while not (job := job_of(self.service.database, job_id)).state.ended:
            if time.monotonic() > until_s:
                raise TimeoutError(f"the job {job_id} does not end: {self._story(job)}")
            time.sleep(POLL_S)
            if moments and job.state is JobState.RUNNING and job.progress >= moments[0]:
                moments.pop(0)
                time.sleep(self.lot.uniform(0, LONGEST_WAIT_S))
                self._kill(job_id)
        return job

    def _story(self, job: Job) -> str:
        with self.service.database.reading() as session:
            events = jobs.events_after(session, job.id, 0)[-30:]
        told = "; ".join(f"{event.at:%H:%M:%S} {event.kind} {event.data.get('step', '')}" for event in events)
        return f"{job.state}, attempt {job.attempts} by {job.worker}, at {job.step!r} ({told})"

    def _kill(self, job_id: str) -> None:
        job = job_of(self.service.database, job_id)
        if job.state.ended or job.worker not in self._workers:
            return
        self._workers.pop(job.worker).kill()
        self.kills[_kind(job.step)] += 1
        self.kills_left -= 1
        self.start_worker()


@dataclass(frozen=True)
class Endured:
    """What was done to a service, and what was found afterwards."""

    kills: Counter[str]
    seconds: float
    findings: Findings


def endure(
    database_url: str,
    data_dir: Path,
    *,
    kills: int,
    seed: int,
    longest_s: float = math.inf,
    told: Callable[[int], None] = lambda kills: None,
) -> Endured:
    """Run cycles that push, each followed by a rollout that takes it back, until so many workers were killed.

    Parameters
    ----------
    database_url
        A migrated database.
    data_dir
        Of the service; anew for each call.
    kills
    seed
        Of the moments; what a moment hits depends on the machine all the same.
    longest_s
        Begin no cycle after so long.
    told
        Called with the number of kills after each job.
    """
    began_s = time.monotonic()
    with (
        replay_engine(**{**LIGHT, "steps_per_s": 25.0}) as url,
        EngineClient(url) as client,
        service_on(database_url, data_dir) as service,
        _killing(service, kills=kills, seed=seed) as killer,
    ):
        seen = Seen(first_layout=client.placement().layout_hash)
        schedule_id = scheduled(
            service, register(service, url), mode=Mode.APPLY, gates=OPEN,
            planning={"time_limit_s": 1.0}, rollout={**PACE, "measure_seconds": MEASURE_S, "roll_back_margin": 0.5},
        )  # fmt: skip
        while killer.kills_left > 0 and time.monotonic() - began_s < longest_s:
            job = killer.see_through(run_now(service, schedule_id).id, most=MOST_KILLS)
            decision = decided(service, job.id)
            seen.after_cycle(decision, client.placement().layout_hash)
            told(killer.kills.total())
            if decision.outcome is Outcome.APPLIED and killer.kills_left:
                _take_back(service, decision, killer)
                told(killer.kills.total())
        return Endured(killer.kills, time.monotonic() - began_s, findings(service, client, seen))


@contextmanager
def _killing(service: Service, *, kills: int, seed: int) -> Iterator[Killer]:
    killer = Killer(service, random.Random(seed), kills)
    try:
        for _ in range(WORKERS):
            killer.start_worker()
        yield killer
    finally:
        killer.stop()


def _take_back(service: Service, decision: Decision, killer: Killer) -> None:
    """Put the layout before the cycle back, so that the next one has something to do."""
    with service.database.writing() as session:
        rollout = plans.find_rollout(session, str(decision.rollout_id))
        if rollout.state is not RolloutState.APPLIED or rollout.from_hash == rollout.to_hash:
            return
        _, job = rollout_service.take_back(service, session, ACTOR, rollout=rollout, reason="for the next cycle")
    killer.see_through(job.id, most=2)


def _kind(step: str) -> str:
    """Return what a job was at, without numbers."""
    words = {
        "record": "recording",
        "push": "pushing",
        "verif": "verifying",
        "measur": "measuring",
        "reading": "reading",
    }
    return next((name for begin, name in words.items() if begin in step), "planning" if step else "beginning")
