"""Workers killed with SIGKILL in rebalancing cycles, on both databases: ``python -m tests.bench.service_faults``.

The engine is a replay engine; its own record of pushes is the witness.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
from rich.progress import Progress

from api.logs import configure_logs
from api.settings import read_settings
from api.store.database import Database
from api.store.migrate import upgrade
from tests.bench.support.service_faults import GONE_AFTER_S, MOST_KILLS, WORKERS, Endured, endure
from tests.bench.support.tables import print_head, print_rows
from tests.postgres import MISSING, running_postgres, server_programs

COLUMNS = (
    "database", "kills", "cycles", "applied", "nothing", "other", "pushes", "twice", "missing", "unnamed", "recordings",
    "lost", "not ended", "minutes",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="on each database")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no cycle later, on each database")
    chosen = parser.parse_args()
    configure_logs("error")
    print_head(
        "workers killed with SIGKILL in rebalancing cycles against the replay engine",
        protocol=(
            f"{WORKERS} workers; whoever has the job is killed 1 to {MOST_KILLS} times a cycle, at progress drawn by "
            f"lot, and a new one started; it is taken for dead after {GONE_AFTER_S:g} s",
            "a cycle records, plans, pushes layer by layer with pauses, verifies, measures and decides; each that "
            "pushed is followed by a rollout that puts the layout before back, with kills of its own",
            "twice, missing: pushes of the engine's own record against those that rollouts say; unnamed: layouts "
            "that ran although no decision names them; lost: recordings that are not what was stored",
            f"seed {chosen.seed}",
        ),
    )
    ended = []
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as bar:
        for name in chosen.databases:
            task = bar.add_task(name, total=chosen.kills)
            with DATABASES[name](Path(folder)) as url:
                done = endure(
                    url, Path(folder) / f"{name}-data", kills=chosen.kills, seed=chosen.seed,
                    longest_s=60 * chosen.minutes,
                    told=lambda kills, task=task: bar.update(task, completed=kills),  # type: ignore[misc]
                )  # fmt: skip
            ended.append((name, done))
    print_rows(COLUMNS, [_row(name, done) for name, done in ended])
    steps = sorted({step for _, done in ended for step in done.kills})
    print_rows(("killed while", *steps), [(name, *(done.kills[step] for step in steps)) for name, done in ended])
    for name, done in ended:
        for fault in done.findings.faults:
            print(f"{name}: {fault}")
    return 1 if any(done.findings.faults for _, done in ended) else 0


def _row(name: str, done: Endured) -> tuple[object, ...]:
    found = done.findings
    applied, nothing = found.outcomes["applied"], found.outcomes["nothing"]
    other = found.outcomes.total() - applied - nothing
    return (
        name, done.kills.total(), found.cycles, applied, nothing, other, found.pushes, len(found.pushed_twice),
        len(found.never_pushed), len(found.unnamed_layouts), found.recordings, len(found.lost), len(found.not_ended),
        f"{done.seconds / 60:.1f}",
    )  # fmt: skip


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    url = f"sqlite:///{folder / 'moeplan.db'}"
    _migrate(url)
    yield url


@contextmanager
def _postgresql(folder: Path) -> Iterator[str]:
    programs = server_programs()
    if programs is None:
        sys.exit(MISSING)
    with running_postgres(programs) as server:
        with psycopg.connect(server % "postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE faults")
        _migrate(server % "faults")
        yield server % "faults"


def _migrate(url: str) -> None:
    database = Database(read_settings(database_url=url).database)
    upgrade(database)
    database.close()


DATABASES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"sqlite": _sqlite, "postgresql": _postgresql}

if __name__ == "__main__":
    sys.exit(main())
