"""A short form of ``python -m tests.bench.service_faults``: some kills on each database; and its witness can fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from api.states import Outcome, RolloutState
from api.store.columns import now
from api.store.models import Decision, Rollout
from tests.bench.support.service_faults import endure
from tests.bench.support.service_witness import Seen, pushes_done, pushes_told

KILLS = 2
"""On each of two databases."""


@pytest.mark.thorough
def test_killed_workers_leave_no_push_done_twice_no_layout_unnamed_and_no_recording_lost(
    database_url: str, tmp_path: Path
) -> None:
    done = endure(database_url, tmp_path / "data", kills=KILLS, seed=4)
    found = done.findings
    assert done.kills.total() == KILLS
    assert found.faults == ()
    assert sum(found.outcomes.values()) == found.cycles > 0
    assert found.outcomes["failed"] == 0
    assert found.pushes >= found.outcomes["applied"] > 0


def rollout(state: RolloutState, **fields: object) -> Rollout:
    return Rollout(id="rol_1", state=state, from_hash="a" * 64, to_hash="b" * 64, **fields)


@pytest.mark.parametrize(
    ("rollouts", "pushes"),
    [
        ([rollout(RolloutState.APPLIED)], [("a" * 64, "b" * 64)]),
        ([rollout(RolloutState.ROLLED_BACK)], [("a" * 64, "b" * 64)]),  # by a later rollout
        ([rollout(RolloutState.ROLLED_BACK, taken_back={})], [("a" * 64, "b" * 64), ("b" * 64, "a" * 64)]),
        ([rollout(RolloutState.REFUSED), rollout(RolloutState.CANCELLED)], []),
    ],
)
def test_the_witness_knows_what_rollouts_say(rollouts: list[Rollout], pushes: list[tuple[str, str]]) -> None:
    assert pushes_told(rollouts) == pushes


def test_the_witness_sees_a_push_that_was_done_twice() -> None:
    once = {"previous_layout_hash": "a" * 64, "pushed_layout_hash": "b" * 64, "layout_hashes": ["c" * 64]}
    refused = {**once, "layout_hashes": []}
    told = Counter(pushes_told([rollout(RolloutState.APPLIED)]))
    assert Counter(pushes_done([once, refused])) == told
    assert Counter(pushes_done([once, once])) - told == Counter({("a" * 64, "b" * 64): 1})


def test_the_witness_sees_a_layout_that_its_decision_does_not_name() -> None:
    seen = Seen(first_layout="a" * 64)
    applied = Decision(id="dec_1", outcome=Outcome.APPLIED, created_at=now(), numbers={"rollout": {"layout_hash": "b"}})
    seen.after_cycle(applied, "b")
    assert seen.unnamed == []
    seen.after_cycle(applied, "c")
    assert len(seen.unnamed) == 1
