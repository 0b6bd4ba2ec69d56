"""The search on processes: the same bytes, also when one is killed; the deadline holds; none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.workers import FanOut
from api.workers.processes import ProcessCrew
from tests.api.workers.layers import Dies, Hangs, Raises, Sabotage, mapped_by, searched, several_batches


@pytest.fixture(scope="module")
def crew() -> Iterator[ProcessCrew]:
    started = ProcessCrew(2)
    yield started
    started.close()


@pytest.mark.parametrize("nodes", [1, 2])
def test_processes_give_the_same_bytes(crew: ProcessCrew, nodes: int) -> None:
    problem = several_batches(nodes=nodes)
    fan_out = FanOut(crew)
    alone, apart = searched(problem), searched(problem, map_tasks=fan_out)
    assert apart.layout.slot_to_expert_LP.tobytes() == alone.layout.slot_to_expert_LP.tobytes()
    assert apart.bound == alone.bound
    assert fan_out.notices == ()


@pytest.mark.parametrize(("kind", "times"), [(Dies, 1), (Dies, 3), (Raises, 2)])
def test_a_lost_worker_changes_nothing_but_is_told(
    crew: ProcessCrew, tmp_path: Path, kind: type[Sabotage], times: int
) -> None:
    problem = several_batches()
    fan_out = FanOut(crew)
    lost = searched(problem, map_tasks=mapped_by(fan_out, kind(tmp_path, times, os.getpid())))
    assert len(list(tmp_path.iterdir())) == times
    assert lost.layout.hash == searched(problem).layout.hash
    assert [notice.code for notice in fan_out.notices] == ["WORKER_LOST"]


def test_a_worker_that_hangs_does_not_hold_up_the_plan(crew: ProcessCrew, tmp_path: Path) -> None:
    problem = several_batches()
    fan_out = FanOut(crew)
    plan = searched(problem, time_limit_s=0.5, map_tasks=mapped_by(fan_out, Hangs(tmp_path, 1, os.getpid())))
    codes = [notice.code for notice in (*plan.notices, *fan_out.notices)]
    assert codes == ["BEST_EFFORT_PLAN", "WORKER_LOST"]
    assert plan.bound.imbalance is not None


SLEEPERS = """
import os, signal, time
from api.workers.processes import ProcessCrew
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
crew = ProcessCrew(2)
try:
    print(crew.submit(eval, "__import__('os').getpid()").result(), flush=True)
    crew.submit(eval, "__import__('time').sleep(600)").result()
finally:
    crew.close()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_children_end_with_their_parent(number: signal.Signals) -> None:
    """Standard output reaches its end only when the last process that holds it has ended."""
    parent = subprocess.Popen(
        [sys.executable, "-c", SLEEPERS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline().strip().isdigit()
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)  # as a terminal does: to all of them
        else:
            parent.send_signal(number)
        _, said = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert parent.returncode == -number
    # Ctrl-C is the parent's affair: no child prints a traceback of its own.
    assert said.count("Traceback") == (1 if number == signal.SIGINT else 0), said
