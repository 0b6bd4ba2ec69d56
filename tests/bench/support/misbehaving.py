"""Engines that misbehave, each in its own way, beside good ones, on real workers."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from pathlib import Path

from api.service.context import Service
from api.states import Outcome
from api.store import engines
from api.store.columns import now
from api.store.models import Decision, Job
from tests.api.schedules import OPEN, decided, register, run_now, scheduled
from tests.api.services import WorkerProcess, job_of, service_on
from tests.bench.support.engine_faults import ENGINE_FAULTS
from tests.bench.support.many_engines import many_engines
from tests.faulty_engine import FaultyEngine, faulty_engine

LIMIT_S = 5.0
RECORDS_ONLY = replace(OPEN, least_tokens=10**9)
GOOD_CODE = "TOO_FEW_TOKENS"
"""How a cycle of a good engine ends here: it has recorded, and its gates ask for more."""

WORKERS = 2


@dataclass(frozen=True)
class Misbehaved:
    """One of them.

    Attributes
    ----------
    name : str
    told : str
        Codes of its decisions.
    longest_s : float
        Of its cycles.
    left_alone, came_back, as_expected : bool
        Whether it was given rests in which nothing is asked of it; whether a cycle ended as usual once its fault was
        over; whether both and the codes are as they should.
    """

    name: str
    told: str
    longest_s: float
    left_alone: bool
    came_back: bool
    as_expected: bool


@dataclass(frozen=True)
class Beside:
    """All of them, and the good ones."""

    engines: Sequence[Misbehaved]
    good_alone_s: float
    good_beside_s: float
    good_longest_s: float
    good_codes: Counter[str]


def misbehave(folder: Path, *, rounds: int, good: int) -> Beside:
    """Run cycles of all kinds of misbehaving engines and of good ones, side by side."""
    folder.mkdir(parents=True)
    names = list(ENGINE_FAULTS)
    with ExitStack() as stack:
        hosted = stack.enter_context(many_engines(len(names) + good))
        service = stack.enter_context(service_on(f"sqlite:///{folder}/moeplan.db", folder / "data"))
        object.__setattr__(service.settings, "engine_timeout_s", LIMIT_S)
        for number in range(WORKERS):
            stack.enter_context(WorkerProcess(service.settings, f"w{number}", gone_after_s=60.0))
        fronts = [stack.enter_context(faulty_engine(hosted[number].url, None)) for number in range(len(names))]
        faulty = [_scheduled(service, front.url, name) for front, name in zip(fronts, names, strict=True)]
        fine = [_scheduled(service, each.url, each.url) for each in hosted[len(names) :]]
        alone = _cycles(service, [schedule_id for _, schedule_id in (*faulty, *fine)])  # nothing is wrong yet
        for number, name in enumerate(names):
            fault = ENGINE_FAULTS[name]
            fronts[number].fault, fronts[number].only = fault.make(hosted[number]), fault.only
        of_faulty: list[list[tuple[Decision, float]]] = [[] for _ in names]
        beside: list[tuple[Decision, float]] = []
        for _ in range(rounds):
            done = _cycles(service, [schedule_id for _, schedule_id in (*faulty, *fine)])
            for number in range(len(names)):
                of_faulty[number].append(done[number])
            beside += done[len(names) :]
        made = [
            _judged(service, name, fronts[number], *faulty[number], of_faulty[number])
            for number, name in enumerate(names)
        ]
    return Beside(
        made,
        good_alone_s=statistics.median(took_s for _, took_s in alone),
        good_beside_s=statistics.median(took_s for _, took_s in beside),
        good_longest_s=max(took_s for _, took_s in beside),
        good_codes=Counter(decision.code for decision, _ in (*alone, *beside)),
    )


def _scheduled(service: Service, url: str, name: str) -> tuple[str, str]:
    engine_id = register(service, url, name=name)
    return engine_id, scheduled(service, engine_id, gates=RECORDS_ONLY)


def _cycles(service: Service, schedule_ids: Sequence[str]) -> list[tuple[Decision, float]]:
    """Run a cycle of each at once; their decisions, and the time from asking to the end."""
    begun = [run_now(service, schedule_id) for schedule_id in schedule_ids]
    return [(decided(service, job.id), _took_s(service, job)) for job in begun]


def _took_s(service: Service, job: Job) -> float:
    until_s = time.monotonic() + 60.0
    while (ended := job_of(service.database, job.id)).ended_at is None and time.monotonic() < until_s:
        time.sleep(0.05)
    return (ended.ended_at - ended.created_at).total_seconds() if ended.ended_at is not None else float("inf")


def _judged(
    service: Service, name: str, front: FaultyEngine, engine_id: str, schedule_id: str,
    done: Sequence[tuple[Decision, float]],
) -> Misbehaved:  # fmt: skip
    expected = ENGINE_FAULTS[name].expected
    codes = [decision.code for decision, _ in done]
    front.fault = None
    with service.database.writing() as session:
        row = engines.find(session, engine_id)
        left_alone = row.resting_until is not None
        if row.resting_until is not None:
            row.resting_until = now() - timedelta(seconds=1)
    (last,) = _cycles(service, [schedule_id])
    came_back = last[0].code == GOOD_CODE and last[0].outcome is Outcome.SKIPPED
    right = codes[0] == expected.code and left_alone is expected.rests and came_back
    told = ", ".join(f"{code} x {len(list(same))}" for code, same in groupby(codes))
    return Misbehaved(name, told, max(took_s for _, took_s in done), left_alone, came_back, right)
