"""Many engines within one hour's schedule: ``python -m tests.bench.service_load --engines 200``.

Every engine is a replay engine with an HTTP server on a port of its own and a schedule that comes due once an hour; an
an hour is as many seconds as ``--hour-seconds`` says. Ticks are spread over it. Each cycle records, plans and judges;
the service is one ``moeplan serve`` and so many workers, each a process. Reads go on meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select, text, update

from api.logs import configure_logs
from api.service.context import Service
from api.store.columns import now
from api.store.models import Cycle, Decision, Job, Schedule
from tests.api.cli.test_service_commands import serving
from tests.api.schedules import register, scheduled
from tests.api.services import WorkerProcess, service_on, wait_for
from tests.bench.service_faults import DATABASES
from tests.bench.support.many_engines import HostedEngine, many_engines
from tests.bench.support.tables import print_head, print_rows
from tests.bench.support.watched import READS, Watched, watching

COLUMNS = (
    "database", "engines", "cycles", "decided", "outcomes", "cycle s: median", "longest", "behind due s: median",
    "longest", "read ms: median", "longest", "failed reads", "service MiB", "worker MiB", "database MiB", "files MiB",
    "minutes",
)  # fmt: skip
LAST_S = 1800.0
"""Cycles that are still open when the hour is over are waited for so long."""


@dataclass(frozen=True)
class Loaded:
    """What came of an hour.

    Attributes
    ----------
    cycles, decided : int
    undecided : tuple of str
        Cycles without exactly one decision.
    outcomes : Counter
    cycle_s, behind_s : tuple of float
        From a job's begin to its end, and from a tick to its job's begin.
    watched : Watched
    database_bytes, files_bytes : int
    seconds : float
    """

    cycles: int
    decided: int
    undecided: tuple[str, ...]
    outcomes: Counter[str]
    cycle_s: tuple[float, ...]
    behind_s: tuple[float, ...]
    watched: Watched
    database_bytes: int
    files_bytes: int
    seconds: float


def load(database_url: str, folder: Path, *, engines: int, workers: int, hour_s: float) -> Loaded:
    """Let schedules of many engines come due once each, and wait for their decisions."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        hosted = stack.enter_context(many_engines(engines))
        service = stack.enter_context(service_on(database_url, folder / "data", log_level="error"))
        _schedule(service, hosted)
        processes = [
            stack.enter_context(WorkerProcess(service.settings, f"worker-{number}", gone_after_s=60.0, beat_s=2.0))
            for number in range(workers)
        ]
        variables = {"MOEPLAN_DATABASE_URL": database_url, "MOEPLAN_WORKERS": "0", "MOEPLAN_LOG_LEVEL": "error"}
        process, url, _ = stack.enter_context(serving(folder, **variables))
        watched_ids = {"service": process.pid, **{each.id: each.process.pid for each in processes}}
        with watching(watched_ids, url) as watched:
            _spread(service, hour_s=hour_s)
            time.sleep(hour_s)
            wait_for(lambda: _decided(service) >= engines, limit_s=LAST_S, what="the last decisions")
        return _found(service, watched, seconds=time.monotonic() - began_s)


def _schedule(service: Service, hosted: Sequence[HostedEngine]) -> None:
    for number, engine in enumerate(hosted):
        engine_id = register(service, engine.url, name=f"engine {number}")
        # Far apart: each comes due once while it is looked at, when :func:`_spread` says.
        scheduled(service, engine_id, name=f"hourly {number}", times={"interval_s": 86400.0})


def _spread(service: Service, *, hour_s: float) -> None:
    """Spread the first ticks evenly over the hour that begins now."""
    with service.database.writing() as session:
        ids = session.scalars(select(Schedule.id).order_by(Schedule.id)).all()
        for number, schedule_id in enumerate(ids):
            due_at = now() + timedelta(seconds=hour_s * number / len(ids))
            session.execute(update(Schedule).where(Schedule.id == schedule_id).values(next_due_at=due_at))


def _decided(service: Service) -> int:
    with service.database.reading() as session:
        return len(session.scalars(select(Decision.id)).all())


def _found(service: Service, watched: Watched, *, seconds: float) -> Loaded:
    with service.database.reading() as session:
        cycles = session.scalars(select(Cycle)).all()
        decisions = session.scalars(select(Decision)).all()
        by_id = {job.id: job for job in session.scalars(select(Job))}
    of_cycle = Counter(decision.cycle_id for decision in decisions)
    rows = [(cycle, by_id[cycle.job_id]) for cycle in cycles if cycle.job_id is not None]
    ended = [(cycle, job) for cycle, job in rows if job.started_at is not None and job.ended_at is not None]
    return Loaded(
        cycles=len(cycles),
        decided=len(decisions),
        undecided=tuple(cycle.id for cycle in cycles if of_cycle[cycle.id] != 1),
        outcomes=Counter(str(decision.outcome) for decision in decisions),
        cycle_s=tuple((job.ended_at - job.started_at).total_seconds() for _, job in ended),
        behind_s=tuple((job.started_at - cycle.due_at).total_seconds() for cycle, job in ended),
        watched=watched,
        database_bytes=database_bytes(service),
        files_bytes=sum(path.stat().st_size for path in (service.settings.data_dir / "files").rglob("*")),
        seconds=seconds,
    )


def database_bytes(service: Service) -> int:
    """Return the size of the database, with SQLite's write-ahead log."""
    if service.database.is_sqlite:
        file = Path(str(service.database.url.database))
        return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))
    with service.database.reading() as session:
        return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def row(database: str, engines: int, loaded: Loaded) -> Sequence[object]:
    """Return a row of the table."""
    watched = loaded.watched
    workers = [peak for name, peak in watched.peak_bytes.items() if name != "service"]
    return (
        database, engines, loaded.cycles, loaded.decided,
        " ".join(f"{count} {outcome}" for outcome, count in loaded.outcomes.most_common()),
        f"{statistics.median(loaded.cycle_s):.1f}", f"{max(loaded.cycle_s):.1f}",
        f"{statistics.median(loaded.behind_s):.1f}", f"{max(loaded.behind_s):.1f}",
        f"{1e3 * statistics.median(watched.read_s):.0f}", f"{1e3 * max(watched.read_s):.0f}", len(watched.failed),
        mebibytes(watched.peak_bytes["service"]), mebibytes(max(workers)), mebibytes(loaded.database_bytes),
        mebibytes(loaded.files_bytes), f"{loaded.seconds / 60:.1f}",
    )  # fmt: skip


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f}" if size < 100 * 2**20 else f"{size / 2**20:.0f}"


def each_database(names: Sequence[str]) -> Iterator[tuple[str, str, Path]]:
    """Give an empty, migrated database after the other: its kind, its URL and a folder."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix="moeplan-load-") as folder, DATABASES[name](Path(folder)) as url:
            yield name, url, Path(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hour-seconds", type=float, default=900.0, help="length of the hour")
    parser.add_argument("--databases", nargs="+", choices=sorted(DATABASES), default=["sqlite", "postgresql"])
    chosen = parser.parse_args()
    configure_logs("error")
    print_head(
        f"{chosen.engines} engines within one hour's schedule",
        protocol=(
            f"one service and {chosen.workers} workers of 2 jobs each; the hour is {chosen.hour_seconds:g} s long, "
            "ticks are spread evenly over it",
            "a cycle records 60 engine steps, plans for 1 s and judges on held-out windows; engines are replay "
            "engines, each with an HTTP server of its own, that serve while they are recorded",
            f"behind due: from a tick to the begin of its job; reads every 2 s of {', '.join(READS)}",
        ),
    )
    rows, wrong = [], []
    for name, url, folder in each_database(chosen.databases):
        loaded = load(url, folder, engines=chosen.engines, workers=chosen.workers, hour_s=chosen.hour_seconds)
        rows.append(row(name, chosen.engines, loaded))
        wrong += [f"{name}: cycle {cycle_id} has not exactly one decision" for cycle_id in loaded.undecided]
        wrong += [f"{name}: {failed}" for failed in sorted(set(loaded.watched.failed))]
    print_rows(COLUMNS, rows)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
