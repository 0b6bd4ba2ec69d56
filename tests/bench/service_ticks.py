"""Two replicas and a schedule every 2 seconds: is every tick done once? ``python -m tests.bench.service_ticks``.

Each replica is a ``moeplan serve`` with its own worker; both share one database. One schedule's cycles end at once (it
is outside of its maintenance hours), so that every tick becomes a job; the other one's record and plan, so that most of
its ticks come while the cycle before still runs. What the database then holds is compared with the ticks that the clock
had.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
from sqlalchemy import select

from api.jobs import durable
from api.logs import configure_logs
from api.rebalancing.gates import Gates
from api.rebalancing.hours import DAYS, Hours
from api.service import schedules as schedule_service
from api.service.context import Service
from api.service.ticks import timing_of
from api.settings import Settings, read_settings
from api.store import jobs, schedules
from api.store.columns import now
from api.store.migrate import upgrade
from api.store.models import Cycle, Decision, Job
from tests.api.schedules import OPEN, register, scheduled
from tests.api.services import ACTOR, replay_engine, service_on, wait_for
from tests.bench.support.tables import print_head, print_rows
from tests.databases import open_database
from tests.postgres import running_postgres, server_programs

REPLICAS = 2
SERVE = "from api.cli import main; main()"
COLUMNS = (
    "database", "cycles", "ticks due", "run", "doubled", "missing", "made up for", "decisions", "jobs",
    "skipped: running", "begun after ms: median", "longest", "by replica",
)  # fmt: skip


@dataclass(frozen=True)
class Ticked:
    """What became of one schedule's ticks.

    Attributes
    ----------
    kind : str
    due : tuple of datetime
        Ticks that the clock had between the start and the end.
    run : tuple of datetime
        Ticks that became a cycle, with repeats.
    made_up_for : int
        Ticks that a later cycle stands for.
    decisions, jobs, running : int
        Decisions; cycles with a job; ticks that came while the cycle before ran.
    late_s : tuple of float
        From each tick to its cycle.
    workers : mapping
        How many of the jobs each worker carried out.
    """

    kind: str
    due: tuple[datetime, ...]
    run: tuple[datetime, ...]
    made_up_for: int
    decisions: int
    jobs: int
    running: int
    late_s: tuple[float, ...]
    workers: Counter[str]

    @property
    def doubled(self) -> int:
        return len(self.run) - len(set(self.run))

    @property
    def missing(self) -> int:
        """Ticks that no cycle stands for."""
        return len(set(self.due) - set(self.run)) - self.made_up_for

    @property
    def once_each(self) -> bool:
        extra = set(self.run) - set(self.due)
        return not self.doubled and not self.missing and not extra and self.decisions == len(self.run)


def tick(database_url: str, data_dir: Path, *, seconds: float, every_s: float = 2.0) -> list[Ticked]:
    """Let two replicas follow two schedules for a while and return what became of the ticks."""
    with ExitStack() as stack:
        url = stack.enter_context(replay_engine())
        service = stack.enter_context(service_on(database_url, data_dir))
        engine_ids = [register(service, url, name=name) for name in ("closed", "open")]
        for number in range(REPLICAS):
            stack.enter_context(_replica(service.settings, number))
        wait_for(lambda: _workers(service) >= REPLICAS, what="the workers")
        kinds = {"end at once": (engine_ids[0], _closed()), "record and plan": (engine_ids[1], OPEN)}
        made = {
            kind: scheduled(service, engine_id, times={"interval_s": every_s}, gates=gates)
            for kind, (engine_id, gates) in kinds.items()
        }
        time.sleep(seconds)
        ends_at = {kind: _pause(service, schedule_id) for kind, schedule_id in made.items()}
        wait_for(lambda: _all_decided(service), what="the last decisions")
        return [_found(service, kind, made[kind], ends_at[kind]) for kind in made]


def _closed() -> Gates:
    """Return gates whose maintenance hours are one minute in half a week."""
    day = DAYS[(now().weekday() + 3) % 7]
    return replace(OPEN, maintenance_hours=(Hours((day,), "00:00", "00:01"),))


@contextmanager
def _replica(settings: Settings, number: int) -> Iterator[None]:
    variables = {**settings.as_variables(), "MOEPLAN_PORT": "0", "MOEPLAN_WORKERS": "1"}
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with (settings.data_dir / f"replica {number}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve"], env={**os.environ, **variables}, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:  # a busy machine; its worker ends with it all the same
            process.kill()
            process.wait()


def _workers(service: Service) -> int:
    with service.database.reading() as session:
        return len(jobs.workers(session))


def _pause(service: Service, schedule_id: str) -> datetime:
    """Pause a schedule; until then its ticks must have been begun, but for those that no worker has looked at yet."""
    with service.database.writing() as session:
        schedule = schedules.lock(session, schedule_id)
        ends_at = schedule.next_due_at
        schedule_service.pause(session, ACTOR, schedule, why="the benchmark ends")
    if ends_at is None:
        raise RuntimeError("the schedule was paused by somebody else")
    return ends_at


def _all_decided(service: Service) -> bool:
    with service.database.reading() as session:
        return session.scalar(select(Cycle.id).where(Cycle.ended_at.is_(None)).limit(1)) is None


def _found(service: Service, kind: str, schedule_id: str, ends_at: datetime) -> Ticked:
    with service.database.reading() as session:
        schedule = schedules.find(session, schedule_id)
        cycles = session.scalars(select(Cycle).where(Cycle.schedule_id == schedule_id)).all()
        decided = session.scalars(select(Decision).where(Decision.schedule_id == schedule_id)).all()
        subjects = [cycle.id for cycle in cycles]
        workers = session.scalars(select(Job.worker).where(Job.subject_id.in_(subjects))).all()
    timing, due = timing_of(schedule), []
    following = timing.next_after(schedule.starts_at)
    while following < ends_at:
        due.append(following)
        following = timing.next_after(following)
    return Ticked(
        kind=kind,
        due=tuple(due),
        run=tuple(cycle.due_at for cycle in cycles),
        made_up_for=schedule.missed_ticks,
        decisions=len(decided),
        jobs=sum(1 for cycle in cycles if cycle.job_id is not None),
        running=sum(1 for decision in decided if decision.code == "CYCLE_RUNNING"),
        late_s=tuple((cycle.created_at - cycle.due_at) / timedelta(seconds=1) for cycle in cycles),
        workers=Counter(worker for worker in workers if worker is not None),
    )


def row(database: str, ticked: Ticked) -> Sequence[object]:
    """Return a row of the table."""
    late_ms = [1000 * late_s for late_s in ticked.late_s] or [0.0]
    return (
        database, ticked.kind, len(ticked.due), len(ticked.run), ticked.doubled, ticked.missing, ticked.made_up_for,
        ticked.decisions, ticked.jobs, ticked.running, f"{statistics.median(late_ms):.0f}", f"{max(late_ms):.0f}",
        " + ".join(str(count) for count in sorted(ticked.workers.values())),
    )  # fmt: skip


@contextmanager
def _databases(folder: Path) -> Iterator[dict[str, str]]:
    """Give the URL of a migrated database of each kind; PostgreSQL only where it is installed."""
    urls = {"SQLite": f"sqlite:///{folder / 'moeplan.db'}"}
    with ExitStack() as stack:
        programs = server_programs()
        if programs is not None:
            server = stack.enter_context(running_postgres(programs))
            with psycopg.connect(server % "postgres", autocommit=True) as connection:
                connection.execute("CREATE DATABASE bench")
            urls["PostgreSQL"] = server % "bench"
        for url in urls.values():
            migrate(url)
        yield urls


def migrate(url: str) -> None:
    """Make the service's tables and the queue's."""
    database = open_database(url)
    upgrade(database)
    database.close()
    durable.upgrade(read_settings(database_url=url).database)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--every-s", type=float, default=2.0)
    chosen = parser.parse_args()
    configure_logs("warning")
    print_head(
        "ticks of schedules with two replicas",
        protocol=(
            f"two processes of moeplan serve with a worker each on one database, for {chosen.seconds:g} s",
            f"a tick every {chosen.every_s:g} s of two schedules, each of an engine of its own (one replay engine)",
            "doubled: ticks with two cycles; missing: ticks that no cycle stands for",
            "begun after: from the tick to its cycle's row; a worker looks every half second",
        ),
    )
    rows, faultless = [], True
    with tempfile.TemporaryDirectory() as folder, _databases(Path(folder)) as urls:
        for name, url in urls.items():
            found = tick(url, Path(folder) / name, seconds=chosen.seconds, every_s=chosen.every_s)
            rows += [row(name, each) for each in found]
            faultless = faultless and all(each.once_each for each in found)
    print_rows(COLUMNS, rows)
    print("Every tick was done once." if faultless else "SOME TICK WAS NOT DONE ONCE.")
    return 0 if faultless else 1


if __name__ == "__main__":
    sys.exit(main())
