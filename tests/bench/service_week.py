"""Does a service grow? A week of schedules in a row: ``python -m tests.bench.service_week``.

A simulated day is so many cycles of every schedule, one after the other without pauses; between them pages, lists and
metrics are read. At the end of each day everything but the last two days is let go, as retention does, and the service
is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import func, select, update

from api.jobs.housekeeping import tidy_up
from api.logs import configure_logs
from api.service.context import Service
from api.store.columns import now
from api.store.models import Base, Cycle, Decision, Trace
from tests.api.cli.test_service_commands import serving
from tests.api.schedules import OPEN, decided, register, run_now, scheduled
from tests.api.services import WorkerProcess, service_on
from tests.bench.service_load import database_bytes, each_database, mebibytes
from tests.bench.support.many_engines import many_engines
from tests.bench.support.tables import print_head, print_rows
from tests.bench.support.watched import resident_bytes, watching

DAYS_KEPT = 2
COLUMNS = (
    "day", "cycles so far", "worker MiB", "service MiB", "rows", "decisions kept", "database MiB", "files", "files MiB",
    "failed reads", "minutes",
)  # fmt: skip
GROWTH = 1.25
"""The last day may have so many times the rows and memory of the first one that retention has worked on."""


@dataclass(frozen=True)
class Day:
    """What was there at the end of a day, once what is over was let go."""

    number: int
    cycles: int
    worker_bytes: int
    service_bytes: int
    rows: int
    decisions: int
    database_bytes: int
    files: int
    files_bytes: int
    failed_reads: int
    seconds: float

    def cells(self) -> Sequence[object]:
        """Return a row of the table."""
        return (
            self.number, self.cycles, mebibytes(self.worker_bytes), mebibytes(self.service_bytes), self.rows,
            self.decisions, mebibytes(self.database_bytes), self.files, mebibytes(self.files_bytes), self.failed_reads,
            f"{self.seconds / 60:.1f}",
        )  # fmt: skip

    def has_not_outgrown(self, earlier: Day) -> bool:
        """Whether rows, files and memory are about those of an earlier day."""
        pairs = (
            (self.worker_bytes, earlier.worker_bytes), (self.service_bytes, earlier.service_bytes),
            (self.rows, earlier.rows), (self.files_bytes, earlier.files_bytes),
        )  # fmt: skip
        return all(later <= GROWTH * before for later, before in pairs)


def week(
    database_url: str, folder: Path, *, days: int, schedules: int, cycles_a_day: int,
    told: Callable[[Day], None] = lambda day: None,
) -> list[Day]:  # fmt: skip
    """Let days of cycles pass; of every schedule the last cycle of a day plans, the others record and weigh."""
    ends: list[datetime] = []
    made: list[Day] = []
    with ExitStack() as stack:
        hosted = stack.enter_context(many_engines(schedules, steps_per_s=200.0))
        service = stack.enter_context(service_on(database_url, folder / "data", log_level="error"))
        worker = stack.enter_context(WorkerProcess(service.settings, "w1", gone_after_s=60.0))
        variables = {"MOEPLAN_DATABASE_URL": database_url, "MOEPLAN_WORKERS": "0", "MOEPLAN_LOG_LEVEL": "error"}
        process, url, _ = stack.enter_context(serving(folder, **variables))
        engine_ids = [register(service, each.url, name=each.url) for each in hosted]
        records = replace(OPEN, least_tokens=10**9)
        light = [scheduled(service, each, name="records", gates=records) for each in engine_ids]
        whole = [scheduled(service, each, name="plans") for each in engine_ids]
        with watching({"service": process.pid}, url) as watched:
            for number in range(1, days + 1):
                began_s = time.monotonic()
                for cycle in range(cycles_a_day):
                    ids = whole if cycle == cycles_a_day - 1 else light
                    for job in [run_now(service, schedule_id) for schedule_id in ids]:
                        decided(service, job.id)
                ends.append(now())
                if number > DAYS_KEPT:
                    _let_go(service, before=ends[number - DAYS_KEPT - 1])
                memory = (resident_bytes(worker.process.pid), resident_bytes(process.pid))
                day = _measured(service, number, memory, len(watched.failed), seconds=time.monotonic() - began_s)
                made.append(day)
                told(day)
    return made


def _let_go(service: Service, *, before: datetime) -> None:
    """Do what a worker does now and then, with times of retention that end at a moment."""
    kept_days = (now() - before) / timedelta(days=1)
    for name in ("event_retention_days", "audit_retention_days", "decision_retention_days"):
        object.__setattr__(service.settings, name, kept_days)
    object.__setattr__(service.settings, "answer_retention_hours", 24 * kept_days)
    with service.database.writing() as session:
        over = Trace.created_at < before
        session.execute(update(Trace).where(over).values(expires_at=before))
    tidy_up(service, young_s=0.0)


def _measured(service: Service, number: int, memory: tuple[int, int], failed: int, *, seconds: float) -> Day:
    with service.database.reading() as session:
        rows = sum(
            session.scalar(select(func.count()).select_from(table)) or 0 for table in Base.metadata.sorted_tables
        )
        cycles = session.scalar(select(func.max(Cycle.number))) or 0
        decisions = session.scalar(select(func.count()).select_from(Decision)) or 0
    files = [path for path in (service.settings.data_dir / "files").rglob("*") if path.is_file()]
    return Day(
        number=number, cycles=cycles, worker_bytes=memory[0], service_bytes=memory[1], rows=rows, decisions=decisions,
        database_bytes=database_bytes(service), files=len(files), files_bytes=sum(p.stat().st_size for p in files),
        failed_reads=failed, seconds=seconds,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--schedules", type=int, default=3, help="each of an engine of its own")
    parser.add_argument("--cycles-a-day", type=int, default=24, help="of each schedule")
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite"])
    chosen = parser.parse_args()
    configure_logs("error")
    print_head(
        f"{chosen.days} days of {chosen.schedules} schedules with {chosen.cycles_a_day} cycles a day",
        protocol=(
            "one service, one worker of two jobs; cycles follow each other without pauses, reads go on meanwhile",
            f"at the end of each day all but the last {DAYS_KEPT} days are let go: recordings, events, audit log, "
            "decisions",
            "cycles so far: of the schedules that record; each also plans once a day",
        ),
    )
    right = True
    for name, url, folder in each_database(chosen.databases):
        days = week(
            url, folder, days=chosen.days, schedules=chosen.schedules, cycles_a_day=chosen.cycles_a_day,
            told=lambda day: print(f"day {day.number} took {day.seconds / 60:.1f} min", file=sys.stderr, flush=True),
        )  # fmt: skip
        print_rows(COLUMNS, [day.cells() for day in days], title=name)
        first = days[min(DAYS_KEPT, len(days) - 1)]
        right &= days[-1].has_not_outgrown(first) and not days[-1].failed_reads
    print("it has not grown" if right else f"it has grown to more than {GROWTH:g} times, or reads failed")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
