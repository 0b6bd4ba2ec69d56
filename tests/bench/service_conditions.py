"""Faults and what the service makes of them, a row each: ``python -m tests.bench.service_conditions``.

Real workers and a real PostgreSQL. Engines that misbehave stand beside good ones, whose cycles must not wait for them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from api.logs import configure_logs
from tests.bench.support.conditions import disk_filled, outages
from tests.bench.support.misbehaving import GOOD_CODE, LIMIT_S, Misbehaved, misbehave
from tests.bench.support.tables import print_head, print_rows

ENGINE_COLUMNS = (
    "engine", "decisions, one after the other", "longest s", "left alone", "back when good", "as expected",
)  # fmt: skip
COLUMNS = ("condition", "what was done", "outcome", "right")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="cycles of every engine that misbehaves")
    parser.add_argument("--good-engines", type=int, default=4)
    parser.add_argument("--outages", type=int, default=3, help="of the database")
    chosen = parser.parse_args()
    configure_logs("error")
    print_head(
        "faults, and what the service makes of them",
        protocol=(
            f"{chosen.good_engines} good engines beside those that misbehave; two workers of two jobs; time limit "
            f"{LIMIT_S:g} s; the cycles of all are asked for at once",
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
            f"good engines: {misbehaved.good_alone_s:.1f} s a cycle while all are, {misbehaved.good_beside_s:.1f} s "
            f"beside those that misbehave (medians; longest {misbehaved.good_longest_s:.1f} s); decisions: "
            + ", ".join(f"{count} {code}" for code, count in misbehaved.good_codes.most_common())
        )
        right &= set(misbehaved.good_codes) == {GOOD_CODE} and all(each.as_expected for each in misbehaved.engines)
        conditions = [*outages(folder / "outages", times=chosen.outages), *disk_filled(folder / "disk")]
        print_rows(COLUMNS, [(each.name, each.done, each.outcome, each.right) for each in conditions])
        right &= all(each.right for each in conditions)
    return 0 if right else 1


def _row(each: Misbehaved) -> tuple[object, ...]:
    return each.name, each.told, f"{each.longest_s:.1f}", each.left_alone, each.came_back, each.as_expected


if __name__ == "__main__":
    sys.exit(main())
