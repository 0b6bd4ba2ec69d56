"""Faults and what the service makes of them, a row each: ``python -m tests.bench.service_conditions``.

Real workers and a real PostgreSQL. Every engine that misbehaves stands beside good ones, whose cycles must not wait for it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from api.logs import configure_logs
from tests.bench.support.conditions import disk_filled, outages, week
from tests.bench.support.misbehaving import Misbehaved, misbehave
from tests.bench.support.tables import print_head, print_rows

ENGINE_COLUMNS = ("engine", "decisions, one after the other", "longest s", "left alone", "back when good", "as expected")
COLUMNS = ("condition", "what was done", "outcome", "right")
WEEK_COLUMNS = ("day", "cycles", "worker MiB", "service MiB", "rows", "database MiB", "files MiB", "decisions kept")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="cycles of every engine that misbehaves")
    parser.add_argument("--good-engines", type=int, default=4)
    parser.add_argument("--outages", type=int, default=3, help="of the database")
    parser.add_argument("--days", type=int, default=7, help="of the simulated week; 0 leaves it out")
    parser.add_argument("--schedules", type=int, default=3, help="of the simulated week, a cycle an hour each")
    parser.add_argument("--cycles-a-day", type=int, default=24, help="of each of them")
    chosen = parser.parse_args()
    configure_logs("error")
    print_head(
        "faults, and what the service makes of them",
        protocol=(
            f"{chosen.good_engines} good engines beside those that misbehave; two workers of two jobs; time limit 2 s",
            f"{chosen.rounds} cycles of each; then its fault ends, its rest is over, and a cycle more",
            f"PostgreSQL is ended as by a crash {chosen.outages} times for 8 s under cycles that push",
        ),
    )
    right = True
    with tempfile.TemporaryDirectory(prefix="moeplan-conditions-") as name:
        folder = Path(name)
        misbehaved = misbehave(folder / "engines", rounds=chosen.rounds, good=chosen.good_engines)
        print_rows(ENGINE_COLUMNS, [_row(each) for each in misbehaved.engines])
        print(
            f"good engines: {misbehaved.good_alone_s:.1f} s a cycle alone, {misbehaved.good_beside_s:.1f} s beside those "
            f"that misbehave (medians; longest {misbehaved.good_longest_s:.1f} s), all decided as usual: "
            f"{misbehaved.good_decided}"
        )
        right &= misbehaved.good_decided and all(each.as_expected for each in misbehaved.engines)
        conditions = [*outages(folder / "outages", times=chosen.outages), *disk_filled(folder / "disk")]
        print_rows(COLUMNS, [(each.name, each.done, each.outcome, each.right) for each in conditions])
        right &= all(each.right for each in conditions)
        if chosen.days:
            days = week(
                folder / "week", days=chosen.days, schedules=chosen.schedules, cycles_a_day=chosen.cycles_a_day
            )
            print_rows(WEEK_COLUMNS, [day.cells() for day in days], title="a simulated week, everything kept for two days")
            right &= days[-1].is_bounded_by(days[min(2, len(days) - 1)])
    return 0 if right else 1


def _row(each: Misbehaved) -> tuple[object, ...]:
    return each.name, each.told, f"{each.longest_s:.1f}", each.left_alone, each.came_back, each.as_expected


if __name__ == "__main__":
    sys.exit(main())
