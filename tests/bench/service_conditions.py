"""Faults and what the service makes of them, a row each: ``python -m tests.bench.service_conditions``.

Real workers and a real PostgreSQL. Engines that misbehave stand beside good ones, whose cycles must not wait for them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from api.logs import configure_logs
from tests.bench.support.conditions import Condition, disk_filled, outages
from tests.bench.support.misbehaving import GOOD_CODE, LIMIT_S, Beside, Misbehaved, misbehave
from tests.bench.support.tables import print_head, print_rows

ENGINE_COLUMNS = (
    "engine", "decisions, one after the other", "longest s", "left alone", "back when good", "as expected",
)  # fmt: skip
COLUMNS = ("condition", "what was done", "outcome", "right")

PARTS = ("engines", "disk", "database")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="cycles of every engine that misbehaves")
    parser.add_argument("--good-engines", type=int, default=4)
    parser.add_argument("--outages", type=int, default=3, help="of the database")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
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
        if "engines" in chosen.parts:
            right &= _engines(misbehave(folder / "engines", rounds=chosen.rounds, good=chosen.good_engines))
        conditions: list[Condition] = []
        if "disk" in chosen.parts:
            conditions += disk_filled(folder / "disk")
        if "database" in chosen.parts:
            conditions += outages(folder / "outages", times=chosen.outages)
        print_rows(COLUMNS, [(each.name, each.done, each.outcome, each.right) for each in conditions])
        right &= all(each.right for each in conditions)
    return 0 if right else 1


def _engines(found: Beside) -> bool:
    """Print the table of engines; return whether all is right."""
    print_rows(ENGINE_COLUMNS, [_row(each) for each in found.engines])
    print(
        f"good engines: {found.good_alone_s:.1f} s a cycle while all are, {found.good_beside_s:.1f} s beside those "
        f"that misbehave (medians; longest {found.good_longest_s:.1f} s); decisions: "
        + ", ".join(f"{count} {code}" for code, count in found.good_codes.most_common())
    )
    return set(found.good_codes) == {GOOD_CODE} and all(each.as_expected for each in found.engines)


def _row(each: Misbehaved) -> tuple[object, ...]:
    return each.name, each.told, f"{each.longest_s:.1f}", each.left_alone, each.came_back, each.as_expected


if __name__ == "__main__":
    sys.exit(main())
